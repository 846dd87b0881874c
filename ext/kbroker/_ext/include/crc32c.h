/* CRC-32C (Castagnoli, reflected polynomial 82F63B78), the checksum of record batches.
 *
 * Two ways, chosen once by crc32c_init(): the processor's CRC instruction (SSE 4.2, or that of ARMv8
 * where the kernel says that there is one), and a table of eight slices. The instruction takes three cycles and one can
 * start every cycle, so large inputs run as three streams side by side; a stream's state is then
 * carried over the bytes of the next one by a table that applies "n zero bytes" to a state (the
 * operation is linear over bits).
 *
 * Functions with the suffix _raw work on the inverted register; callers use crc32c_update().
 * Include from one translation unit only: the tables are static.
 */
#ifndef KBROKER_CRC32C_H
#define KBROKER_CRC32C_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <nmmintrin.h>
#define CRC32C_HARDWARE "sse4.2"
#ifdef __clang__ /* to which the instruction is a feature of its own */
#define CRC32C_TARGET __attribute__((target("sse4.2,crc32")))
#else
#define CRC32C_TARGET __attribute__((target("sse4.2")))
#endif
#define CRC32C_STEP8(crc, word) ((uint32_t)_mm_crc32_u64((crc), (word)))
#define CRC32C_STEP1(crc, byte) ((uint32_t)_mm_crc32_u8((crc), (byte)))
#define CRC32C_AVAILABLE() crc32c_has_instruction()

/* Asked of the processor itself: with Zig's library, __builtin_cpu_supports() knows of nothing. */
static int crc32c_has_instruction(void)
{
    unsigned int a, b, c = 0, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_SSE4_2);
}
#elif defined(__aarch64__) && defined(__linux__)
#include <arm_acle.h>
#include <sys/auxv.h>
#define CRC32C_HARDWARE "armv8-crc"
#define CRC32C_TARGET __attribute__((target("+crc")))
#define CRC32C_STEP8(crc, word) __crc32cd((crc), (word))
#define CRC32C_STEP1(crc, byte) __crc32cb((crc), (byte))
#define CRC32C_AVAILABLE() ((getauxval(AT_HWCAP) & HWCAP_CRC32) != 0)
#endif

#define CRC32C_POLYNOMIAL 0x82F63B78u
/* Bytes of one of the three streams. The long one bounds the cost of joining (two table walks per
 * 6 KiB), the short one serves what is left; below three short streams a single stream is used. */
#define CRC32C_LONG 2048
#define CRC32C_SHORT 256

static uint32_t crc32c_slices[8][256];
static uint32_t (*crc32c_raw)(uint32_t, const uint8_t *, size_t);

static inline uint64_t crc32c_word(const uint8_t *p)
{
    uint64_t word;
    memcpy(&word, p, 8);
    return word;
}

static uint32_t crc32c_table_raw(uint32_t crc, const uint8_t *p, size_t n)
{
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    for (; n >= 8; p += 8, n -= 8) {
        uint64_t word = crc32c_word(p) ^ crc;
        crc = crc32c_slices[7][word & 0xFF] ^ crc32c_slices[6][(word >> 8) & 0xFF]
            ^ crc32c_slices[5][(word >> 16) & 0xFF] ^ crc32c_slices[4][(word >> 24) & 0xFF]
            ^ crc32c_slices[3][(word >> 32) & 0xFF] ^ crc32c_slices[2][(word >> 40) & 0xFF]
            ^ crc32c_slices[1][(word >> 48) & 0xFF] ^ crc32c_slices[0][word >> 56];
    }
#endif
    for (; n > 0; p++, n--)
        crc = (crc >> 8) ^ crc32c_slices[0][(crc ^ *p) & 0xFF];
    return crc;
}

#ifdef CRC32C_HARDWARE
static uint32_t crc32c_skip_long[4][256];
static uint32_t crc32c_skip_short[4][256];

/* The register after `zeros` more zero bytes, for each of its four bytes separately. */
static void crc32c_init_skip(uint32_t skip[4][256], size_t zeros)
{
    uint32_t image[32];
    for (int bit = 0; bit < 32; bit++) {
        uint32_t crc = 1u << bit;
        for (size_t i = 0; i < zeros; i++)
            crc = (crc >> 8) ^ crc32c_slices[0][crc & 0xFF];
        image[bit] = crc;
    }
    for (int byte = 0; byte < 4; byte++)
        for (int value = 0; value < 256; value++) {
            uint32_t crc = 0;
            for (int bit = 0; bit < 8; bit++)
                if (value >> bit & 1)
                    crc ^= image[8 * byte + bit];
            skip[byte][value] = crc;
        }
}

static inline uint32_t crc32c_skip(uint32_t skip[4][256], uint32_t crc)
{
    return skip[0][crc & 0xFF] ^ skip[1][(crc >> 8) & 0xFF] ^ skip[2][(crc >> 16) & 0xFF]
        ^ skip[3][crc >> 24];
}

/* Three streams of `stride` bytes each, stride a multiple of a cache line's 64. Three streams in pages that end every
 * 6 KiB are more than the processor foresees, and a produced batch comes from another core's cache: asking for the
 * next three streams' lines is worth half again as much speed. Past the end of the input it does no harm. */
CRC32C_TARGET static inline uint32_t crc32c_three(
    uint32_t crc, const uint8_t *p, size_t stride, uint32_t skip[4][256])
{
    uint32_t second = 0, third = 0;
    const uint8_t *end = p + stride;
    while (p < end) {
        __builtin_prefetch(p + 3 * stride);
        __builtin_prefetch(p + 4 * stride);
        __builtin_prefetch(p + 5 * stride);
        for (const uint8_t *line_end = p + 64; p < line_end; p += 8) {
            crc = CRC32C_STEP8(crc, crc32c_word(p));
            second = CRC32C_STEP8(second, crc32c_word(p + stride));
            third = CRC32C_STEP8(third, crc32c_word(p + 2 * stride));
        }
    }
    crc = crc32c_skip(skip, crc) ^ second;
    return crc32c_skip(skip, crc) ^ third;
}

CRC32C_TARGET static uint32_t crc32c_hardware_raw(uint32_t crc, const uint8_t *p, size_t n)
{
    for (; n >= 3 * CRC32C_LONG; p += 3 * CRC32C_LONG, n -= 3 * CRC32C_LONG)
        crc = crc32c_three(crc, p, CRC32C_LONG, crc32c_skip_long);
    for (; n >= 3 * CRC32C_SHORT; p += 3 * CRC32C_SHORT, n -= 3 * CRC32C_SHORT)
        crc = crc32c_three(crc, p, CRC32C_SHORT, crc32c_skip_short);
    for (; n >= 8; p += 8, n -= 8)
        crc = CRC32C_STEP8(crc, crc32c_word(p));
    for (; n > 0; p++, n--)
        crc = CRC32C_STEP1(crc, *p);
    return crc;
}
#endif

/* Must run before any other function here; returns the name of the way that was chosen. */
static const char *crc32c_init(void)
{
    for (uint32_t value = 0; value < 256; value++) {
        uint32_t crc = value;
        for (int bit = 0; bit < 8; bit++)
            crc = (crc >> 1) ^ (crc & 1 ? CRC32C_POLYNOMIAL : 0);
        crc32c_slices[0][value] = crc;
    }
    for (int slice = 1; slice < 8; slice++)
        for (int value = 0; value < 256; value++) {
            uint32_t crc = crc32c_slices[slice - 1][value];
            crc32c_slices[slice][value] = (crc >> 8) ^ crc32c_slices[0][crc & 0xFF];
        }
    crc32c_raw = crc32c_table_raw;
#ifdef CRC32C_HARDWARE
    if (CRC32C_AVAILABLE()) {
        crc32c_init_skip(crc32c_skip_long, CRC32C_LONG);
        crc32c_init_skip(crc32c_skip_short, CRC32C_SHORT);
        crc32c_raw = crc32c_hardware_raw;
        return CRC32C_HARDWARE;
    }
#endif
    return "table";
}

static inline uint32_t crc32c_update(uint32_t crc, const uint8_t *p, size_t n)
{
    return ~crc32c_raw(~crc, p, n);
}

static inline uint32_t crc32c_update_table(uint32_t crc, const uint8_t *p, size_t n)
{
    return ~crc32c_table_raw(~crc, p, n);
}

#endif
