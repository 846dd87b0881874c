/* CRC-32 (IEEE 802.3, reflected polynomial EDB88320), the checksum of message formats 0 and 1.
 *
 * Carry-less multiplication where the processor has it: 64 bytes are folded at a time, as in Intel's paper
 * "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction" (bit-reflected form). Else,
 * and for ends, a table of eight slices; the processors' CRC instructions are for another polynomial.
 * Include from one translation unit only: the tables are static.
 */
#ifndef KBROKER_CRC32_H
#define KBROKER_CRC32_H

#include <endian.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

#define CRC32_POLYNOMIAL 0xEDB88320u

static uint32_t crc32_slices[8][256];
static int crc32_folds; /* whether the processor multiplies without carries */

/* Must run before crc32_update. */
static void crc32_init(void)
{
    for (uint32_t value = 0; value < 256; value++) {
        uint32_t crc = value;
        for (int bit = 0; bit < 8; bit++)
            crc = (crc >> 1) ^ (crc & 1 ? CRC32_POLYNOMIAL : 0);
        crc32_slices[0][value] = crc;
    }
    for (int slice = 1; slice < 8; slice++)
        for (int value = 0; value < 256; value++) {
            uint32_t crc = crc32_slices[slice - 1][value];
            crc32_slices[slice][value] = (crc >> 8) ^ crc32_slices[0][crc & 0xFF];
        }
#if defined(__x86_64__)
    /* Asked of the processor itself: with Zig's library, __builtin_cpu_supports() knows of nothing. */
    unsigned int a, b, c = 0, d;
    unsigned int needed = bit_PCLMUL | bit_SSE4_1;
    crc32_folds = __get_cpuid(1, &a, &b, &c, &d) && (c & needed) == needed;
#endif
}

#if defined(__x86_64__)
#define CRC32_LOAD(address) _mm_loadu_si128((const __m128i *)(address))

/* What `value` is, `distance` bytes further on, where `added` stands: factors has the powers for it. */
__attribute__((target("pclmul,sse4.1"))) static inline __m128i crc32_fold_one(
    __m128i value, __m128i factors, __m128i added)
{
    __m128i low = _mm_clmulepi64_si128(value, factors, 0x00);
    __m128i high = _mm_clmulepi64_si128(value, factors, 0x11);
    return _mm_xor_si128(_mm_xor_si128(low, high), added);
}

/* n: at least 64, a multiple of 16. crc goes in and comes out inverted. */
__attribute__((target("pclmul,sse4.1"))) static uint32_t crc32_fold(
    uint32_t crc, const uint8_t *p, size_t n)
{
    const __m128i by_64 = _mm_set_epi64x(0x01C6E41596, 0x0154442BD4);
    const __m128i by_16 = _mm_set_epi64x(0x00CCAA009E, 0x01751997D0);
    const __m128i by_4 = _mm_set_epi64x(0, 0x0163CD6124);
    const __m128i barrett = _mm_set_epi64x(0x01F7011641, 0x01DB710641); /* quotient, polynomial */
    const __m128i words = _mm_setr_epi32(-1, 0, -1, 0);
    __m128i a = _mm_xor_si128(CRC32_LOAD(p), _mm_cvtsi32_si128((int)crc));
    __m128i b = CRC32_LOAD(p + 16), c = CRC32_LOAD(p + 32), d = CRC32_LOAD(p + 48);
    for (p += 64, n -= 64; n >= 64; p += 64, n -= 64) {
        a = crc32_fold_one(a, by_64, CRC32_LOAD(p));
        b = crc32_fold_one(b, by_64, CRC32_LOAD(p + 16));
        c = crc32_fold_one(c, by_64, CRC32_LOAD(p + 32));
        d = crc32_fold_one(d, by_64, CRC32_LOAD(p + 48));
    }
    a = crc32_fold_one(a, by_16, b);
    a = crc32_fold_one(a, by_16, c);
    a = crc32_fold_one(a, by_16, d);
    for (; n >= 16; p += 16, n -= 16)
        a = crc32_fold_one(a, by_16, CRC32_LOAD(p));
    /* 128 bits to 64, to 32 and zeros, and what is left of a division by the polynomial (Barrett) */
    a = _mm_xor_si128(_mm_srli_si128(a, 8), _mm_clmulepi64_si128(a, by_16, 0x10));
    b = _mm_clmulepi64_si128(_mm_and_si128(a, words), by_4, 0x00);
    a = _mm_xor_si128(_mm_srli_si128(a, 4), b);
    b = _mm_clmulepi64_si128(_mm_and_si128(a, words), barrett, 0x10);
    b = _mm_clmulepi64_si128(_mm_and_si128(b, words), barrett, 0x00);
    return (uint32_t)_mm_extract_epi32(_mm_xor_si128(a, b), 1);
}
#endif

static uint32_t crc32_update(uint32_t crc, const uint8_t *p, size_t n)
{
    crc = ~crc;
#if defined(__x86_64__)
    if (n >= 64 && crc32_folds) {
        size_t folded = n & ~(size_t)15;
        crc = crc32_fold(crc, p, folded);
        p += folded;
        n -= folded;
    }
#endif
    for (; n >= 8; p += 8, n -= 8) {
        uint64_t word;
        memcpy(&word, p, 8);
        word = le64toh(word) ^ crc;
        crc = crc32_slices[7][word & 0xFF] ^ crc32_slices[6][(word >> 8) & 0xFF]
            ^ crc32_slices[5][(word >> 16) & 0xFF] ^ crc32_slices[4][(word >> 24) & 0xFF]
            ^ crc32_slices[3][(word >> 32) & 0xFF] ^ crc32_slices[2][(word >> 40) & 0xFF]
            ^ crc32_slices[1][(word >> 48) & 0xFF] ^ crc32_slices[0][word >> 56];
    }
    for (; n > 0; p++, n--)
        crc = (crc >> 8) ^ crc32_slices[0][(crc ^ *p) & 0xFF];
    return ~crc;
}

#endif
