"""Down-conversion for clients older than message format 2: the records of a fetch, within a memory budget.

The reader has found the bytes in the files as for any fetch. Here they are converted, partition by partition, until the
share of each partition is used up; the client's next fetch gets the rest. A range without any message for the client
(control batches, batches emptied by compaction) is skipped and the next one is read; otherwise the client would request
the same range forever. BOUND: BUDGET_MAX bytes per response, less when the unsent ones approach IN_FLIGHT_MAX; the
first batch of a partition may exceed that, up to RESPONSE_MAX. Each response starts with a different partition, so none
is starved.
"""

from kbroker._ext.fetch.fetch_reader cimport clear_offsets

cdef enum:
    FIRST_WITH_FORMAT_1 = 2
    FIRST_OF_WHOLE_BATCHES = 3
    # BOUND: converting this much takes a network process 10 to 100 ms, depending on the codec.
    BUDGET_MAX = 4194304
    BUDGET_MIN = 65536
    RESPONSE_MAX = 16777216
    IN_FLIGHT_MAX = 67108864
    # BOUND: ranges without messages skipped in one request, and bytes in each of them unless one batch is larger.
    RANGES_MAX = 64
    RANGE_BYTES = 1048576


cdef class OldReplies:
    """One per FetchEngine."""

    def __cinit__(self, PartitionReader reader not None, ReplyPool replies not None):
        self.reader = reader
        self.replies = replies
        self.converter = DownConverter.__new__(DownConverter)

    cdef void clear(self) noexcept:
        self.converter.clear()

    cdef int64_t budget(self) noexcept:
        cdef int64_t left = (IN_FLIGHT_MAX - self.replies.copied_bytes) // 4
        return min(max(left, <int64_t>BUDGET_MIN), <int64_t>BUDGET_MAX)

    cdef int convert(self, FetchSession session, FetchTerms* terms) except -1:
        cdef:
            PartitionResponse* response
            FetchPartition* entry
            int64_t left = self.budget()
            int64_t total = 0
            int32_t number
            int32_t turn
            int32_t waiting = 0
            Wish wish
        wish.magic = 1 if terms.version >= FIRST_WITH_FORMAT_1 else 0
        wish.hard = terms.version < FIRST_OF_WHOLE_BATCHES
        for number in range(self.reader.result_count):
            waiting += self.reader.results[number].response.size > 0
        self.turn = self.turn + 1 if self.turn < 0x3FFFFFFF and wish.hard else 0
        for turn in range(self.reader.result_count):
            number = <int32_t>((self.turn + <int64_t>turn) % self.reader.result_count)
            response = &self.reader.results[number].response
            if response.size == 0:
                continue
            if total >= RESPONSE_MAX:
                self.reader.files.drop(response.file)
                response.file = -1
                response.size = 0
                continue
            entry = &session.partitions[self.reader.results[number].entry]
            wish.from_offset = entry.fetch_offset
            # Each partition gets its share, so that a long log does not starve the others.
            wish.bytes_enough = max(left // waiting, <int64_t>1)
            wish.bytes_max = max(<int64_t>entry.bytes_max, <int64_t>0)
            if wish.hard:
                wish.bytes_enough = min(wish.bytes_enough, wish.bytes_max)
            else:
                wish.bytes_max = min(wish.bytes_max, max(terms.bytes_max - total, <int64_t>0))
            wish.at_least_one = total == 0
            self.convert_one(entry, terms, response, &wish)
            total += response.size
            left = max(left - response.size, <int64_t>0)
            waiting -= 1
        # The buffer may have moved while it grew.
        for number in range(self.reader.result_count):
            response = &self.reader.results[number].response
            if response.size > 0:
                response.records = self.converter.out.data + response.position
        return 0

    cdef int convert_one(
        self, FetchPartition* entry, const FetchTerms* terms, PartitionResponse* response, Wish* wish
    ) except -1:
        cdef:
            PartitionResponse more
            int64_t start = self.converter.out.size
            int64_t next_offset = entry.fetch_offset
            int64_t asked = entry.fetch_offset
            int64_t before
            int16_t error
            int ranges = 0
        more = response[0]
        while True:
            before = next_offset
            error = self.converter.convert_range(
                self.reader.files.files[more.file].fd, more.position, more.size, wish, &next_offset)
            ranges += 1
            if ranges == 1:
                self.reader.files.drop(response.file)
                response.file = -1
            if error != 0 or self.converter.out.size > start or next_offset == before or ranges == RANGES_MAX:
                break
            # The file stays valid until the next one is opened, which happens in the next round.
            entry.fetch_offset = next_offset
            error = self.reader.read_partition(entry, terms, RANGE_BYTES, True, &more)
            if error != 0 or more.size == 0:
                error = 0  # the client gets that error when it fetches from that offset
                break
        entry.fetch_offset = asked
        response.position = start
        response.size = self.converter.out.size - start
        response.error = error
        if error != 0:
            clear_offsets(response)
        return 0
