# The hash that Kafka's clients place keys by: murmur2 with Kafka's seed.
from libc.stdint cimport int32_t, uint8_t, uint32_t


cdef inline uint32_t murmur2(const uint8_t* p, int32_t size) noexcept nogil:
    cdef:
        uint32_t m = 0x5BD1E995
        uint32_t h = <uint32_t>0x9747B28C ^ <uint32_t>size
        uint32_t k
        int32_t left = size
    while left >= 4:
        k = p[0] | <uint32_t>p[1] << 8 | <uint32_t>p[2] << 16 | <uint32_t>p[3] << 24
        k *= m
        k ^= k >> 24
        k *= m
        h = (h * m) ^ k
        p += 4
        left -= 4
    if left == 3:
        h ^= <uint32_t>p[2] << 16
    if left >= 2:
        h ^= <uint32_t>p[1] << 8
    if left >= 1:
        h ^= p[0]
        h *= m
    h ^= h >> 13
    h *= m
    return h ^ (h >> 15)


# The partition that Kafka's default partitioner gives a key.
cdef inline int32_t murmur2_partition(const uint8_t* key, int32_t size, int32_t partitions) noexcept nogil:
    return <int32_t>((murmur2(key, size) & 0x7FFFFFFFu) % <uint32_t>partitions)
