"""The offset map of compaction: key hash to last offset in a log's dirty section (see offset_map.pxd).

If two keys had the same hash, one of them would lose its value. So the hash has 128 bits and a secret key per map:
SipHash-2-4, which resists keys that are chosen to collide. The memory comes zeroed from the system and is only touched
where keys land, in huge pages if available; it is freed with the object.
"""
import os

from libc.stdint cimport INT64_MAX, int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>
    #define KB_ROTL(x, b) (((x) << (b)) | ((x) >> (64 - (b))))
    #define KB_SIP_ROUND \
        do { \
            v0 += v1; v1 = KB_ROTL(v1, 13); v1 ^= v0; v0 = KB_ROTL(v0, 32); \
            v2 += v3; v3 = KB_ROTL(v3, 16); v3 ^= v2; \
            v0 += v3; v3 = KB_ROTL(v3, 21); v3 ^= v0; \
            v2 += v1; v1 = KB_ROTL(v1, 17); v1 ^= v2; v2 = KB_ROTL(v2, 32); \
        } while (0)

    /* SipHash-2-4 with 128 bits of output (Aumasson and Bernstein). Loads are native: the value never leaves memory. */
    static void kb_siphash128(const uint8_t *p, size_t n, const uint64_t k[2], uint64_t out[2]) {
        uint64_t v0 = k[0] ^ 0x736f6d6570736575ULL, v1 = k[1] ^ 0x646f72616e646f6dULL ^ 0xee;
        uint64_t v2 = k[0] ^ 0x6c7967656e657261ULL, v3 = k[1] ^ 0x7465646279746573ULL;
        uint64_t m = 0, b = (uint64_t)n << 56;
        size_t left = n;
        int i;
        for (; left >= 8; left -= 8, p += 8) {
            memcpy(&m, p, 8);
            v3 ^= m; KB_SIP_ROUND; KB_SIP_ROUND; v0 ^= m;
        }
        m = 0;
        if (left) memcpy(&m, p, left);
        b |= m;
        v3 ^= b; KB_SIP_ROUND; KB_SIP_ROUND; v0 ^= b;
        v2 ^= 0xee;
        for (i = 0; i < 4; i++) KB_SIP_ROUND;
        out[0] = v0 ^ v1 ^ v2 ^ v3;
        v1 ^= 0xdd;
        for (i = 0; i < 4; i++) KB_SIP_ROUND;
        out[1] = v0 ^ v1 ^ v2 ^ v3;
    }
    /* A place in 0..n-1 from a hash, without a division. */
    static inline uint64_t kb_place(uint64_t h, uint64_t n) {
        return (uint64_t)(((unsigned __int128)h * n) >> 64);
    }
    """
    void kb_siphash128(const uint8_t* p, size_t n, const uint64_t* k, uint64_t* out) noexcept nogil
    uint64_t kb_place(uint64_t h, uint64_t n) noexcept nogil

cdef extern from "<sys/mman.h>" nogil:
    int madvise(void* start, size_t size, int advice)
    enum:
        MADV_HUGEPAGE

cdef enum:
    HUGE_PAGE_BYTES = 2 << 20

ENTRY_BYTES = sizeof(MapEntry)


cdef class OffsetMap:
    """Used by one thread at a time. ``put`` replaces the offset of a key that is already in the map."""

    def __cinit__(self, int64_t bytes_max, double load_factor, int64_t keys_max=INT64_MAX):
        """bytes_max: memory that it may take. keys_max: upper bound of the number of keys; the map may be smaller then.

        Raises ValueError if not even one key fits in bytes_max; MemoryError.
        """
        cdef bytes secret = os.urandom(sizeof(self.secret))
        self.entries = NULL
        self.capacity = bytes_max // <int64_t>sizeof(MapEntry)
        if load_factor > 0 and keys_max < self.capacity * load_factor:
            self.capacity = min(self.capacity, <int64_t>(max(keys_max, 1) / load_factor) + 2)
        self.limit = min(<int64_t>(<double>self.capacity * load_factor), self.capacity - 1)
        self.count = 0
        self.latest_offset = -1
        memcpy(self.secret, <const char*>secret, sizeof(self.secret))
        if self.limit < 1:
            raise ValueError(f"{bytes_max} bytes at a load factor of {load_factor} hold no key")
        self.entries = <MapEntry*>calloc(<size_t>self.capacity, sizeof(MapEntry))
        if self.entries == NULL:
            raise MemoryError(bytes_max)
        self.ask_for_huge_pages()

    def __dealloc__(self):
        free(self.entries)

    cdef void ask_for_huge_pages(self) noexcept nogil:
        """Keys land anywhere in the map: with small pages, each costs two page faults at first and a page table walk
        every time later. This is a hint that the system may ignore."""
        cdef size_t first = (<size_t>self.entries + HUGE_PAGE_BYTES - 1) // HUGE_PAGE_BYTES * HUGE_PAGE_BYTES
        cdef size_t end = (<size_t>self.entries + <size_t>self.capacity * sizeof(MapEntry)) // HUGE_PAGE_BYTES * HUGE_PAGE_BYTES
        if end > first:
            madvise(<void*>first, end - first, MADV_HUGEPAGE)

    cdef MapEntry* find(self, const uint8_t* key, Py_ssize_t size, uint64_t* hash) noexcept nogil:
        """Return the key's entry, or the empty one that it would take."""
        cdef MapEntry* entry
        cdef MapEntry* end = self.entries + self.capacity
        kb_siphash128(key, <size_t>size, self.secret, hash)
        entry = self.entries + kb_place(hash[0], <uint64_t>self.capacity)
        # BOUND: limit < capacity, so the loop reaches an empty entry.
        while entry.next_offset != 0 and (entry.hash[0] != hash[0] or entry.hash[1] != hash[1]):
            entry += 1
            if entry == end:
                entry = self.entries
        return entry

    cdef bint put(self, const uint8_t* key, Py_ssize_t size, int64_t offset) noexcept nogil:
        cdef uint64_t[2] hash
        cdef MapEntry* entry = self.find(key, size, hash)
        if entry.next_offset == 0:
            if self.count >= self.limit:
                return False
            self.count += 1
            entry.hash[0], entry.hash[1] = hash[0], hash[1]
        entry.next_offset = offset + 1
        return True

    cdef int64_t get(self, const uint8_t* key, Py_ssize_t size) noexcept nogil:
        cdef uint64_t[2] hash
        return self.find(key, size, hash).next_offset - 1

    def put_key(self, bytes key not None, int64_t offset) -> bool:
        """Python face of put, for tests."""
        return self.put(<const uint8_t*><const char*>key, len(key), offset)

    def get_key(self, bytes key not None) -> int:
        """Python face of get, for tests."""
        return self.get(<const uint8_t*><const char*>key, len(key))
