# Responses to Fetch versions 0 to 3: the results of a PartitionReader, converted to message format 0 or 1.
from libc.stdint cimport int16_t, int32_t, int64_t

from kbroker._ext.fetch.fetch_purgatory cimport FetchTerms
from kbroker._ext.fetch.fetch_reader cimport PartitionReader
from kbroker._ext.fetch.fetch_reply cimport PartitionResponse, ReplyPool
from kbroker._ext.fetch.fetch_sessions cimport FetchPartition, FetchSession
from kbroker._ext.record.down_convert cimport DownConverter, Wish


cdef class OldReplies:
    cdef PartitionReader reader
    cdef ReplyPool replies
    cdef DownConverter converter
    cdef int32_t turn        # which partition is first
    # Convert the records of all results; until clear(), the results point to bytes owned by this object.
    cdef int convert(self, FetchSession session, FetchTerms* terms) except -1
    cdef void clear(self) noexcept

    cdef int64_t budget(self) noexcept
    cdef int convert_one(
        self, FetchPartition* entry, const FetchTerms* terms, PartitionResponse* response, Wish* wish
    ) except -1
