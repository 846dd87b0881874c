# Writes what was read for a fetch into its response. See fetch_encode.pyx.
from libc.stdint cimport int16_t, int32_t

from kbroker._ext.fetch.fetch_purgatory cimport FetchTerms
from kbroker._ext.fetch.fetch_reader cimport PartitionReader
from kbroker._ext.fetch.fetch_reply cimport FetchReply, ReplyPool
from kbroker._ext.fetch.fetch_sessions cimport FetchSession


cdef class FetchEncoder:
    cdef PartitionReader _reader
    cdef ReplyPool _replies
    # find_leaders(listener index) -> a LeaderHints for one response (workers/network/leader_hints). None: nobody is told of
    # leaders.
    cdef public object find_leaders
    cdef int select_news(self, FetchSession session) except -1
    cdef bytes add_leaders(self, FetchSession session, const FetchTerms* terms)
    cdef FetchReply encode(
        self, FetchSession session, const FetchTerms* terms, int16_t error, int32_t session_id
    )
