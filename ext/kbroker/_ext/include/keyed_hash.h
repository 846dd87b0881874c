/* A hash of bytes that depends on a secret seed, so that nobody can choose names that collide. */
#ifndef KBROKER_KEYED_HASH_H
#define KBROKER_KEYED_HASH_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline uint64_t keyed_mix(uint64_t a, uint64_t b) {
    __uint128_t product = (__uint128_t)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static inline uint64_t keyed_hash(const uint8_t *p, size_t n, uint64_t seed) {
    uint64_t hash = keyed_mix(seed ^ (uint64_t)n, 0x9E3779B97F4A7C15u);
    uint64_t word;
    while (n >= 8) {
        memcpy(&word, p, 8);
        hash = keyed_mix(hash ^ word, seed | 1);
        p += 8;
        n -= 8;
    }
    if (n > 0) {
        word = 0;
        memcpy(&word, p, n);
        hash = keyed_mix(hash ^ word, seed | 1);
    }
    return keyed_mix(hash, 0xD6E8FEB86659FD93u);
}

#endif
