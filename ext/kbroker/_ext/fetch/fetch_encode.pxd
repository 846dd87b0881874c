# Writes what was read for a fetch into its response. See fetch_encode.pyx.
from libc.stdint cimport int16_t, int32_t

from kbroker._ext.fetch.fetch_purgatory cimport FetchTerms
from kbroker._ext.fetch.fetch_reader cimport PartitionReader
from kbroker._ext.fetch.fetch_reply cimport FetchReply, ReplyPool
from kbroker._ext.fetch.fetch_sessions cimport FetchSession


cdef class FetchEncoder:
    cdef PartitionReader _reader
    cdef ReplyPool _replies
    cdef int select_news(self, FetchSession session) except -1
    cdef FetchReply encode(
        self, FetchSession session, const FetchTerms* terms, int16_t error, int32_t session_id
    )
