/* CRC-32 (IEEE 802.3, reflected polynomial EDB88320), the checksum of message formats 0 and 1.
 *
 * A table of eight slices; the processors' CRC instructions are for another polynomial. Include from
 * one translation unit only: the tables are static.
 */
#ifndef KBROKER_CRC32_H
#define KBROKER_CRC32_H

#include <endian.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define CRC32_POLYNOMIAL 0xEDB88320u

static uint32_t crc32_slices[8][256];

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
}

static uint32_t crc32_update(uint32_t crc, const uint8_t *p, size_t n)
{
    crc = ~crc;
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
