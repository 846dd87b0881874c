# Serves Fetch requests in a network process: sessions, reading positions, purgatory. See fetch_engine.pyx.
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint64_t

from kbroker._ext.fetch.fetch_decode cimport FetchRequest
from kbroker._ext.fetch.fetch_encode cimport FetchEncoder
from kbroker._ext.fetch.fetch_files cimport FileCache
from kbroker._ext.fetch.fetch_purgatory cimport FetchTerms, ParkedFetch, FetchPurgatory, WaitNode
from kbroker._ext.fetch.fetch_reader cimport PartitionReader
from kbroker._ext.fetch.fetch_reply cimport FetchReply, ReplyPool
from kbroker._ext.fetch.fetch_sessions cimport FetchSession, SessionCache
from kbroker._ext.fetch.follower_reports cimport FollowerReports
from kbroker._ext.fetch.old_replies cimport OldReplies
from kbroker._ext.fetch.standing_waits cimport StandingWaits
from kbroker._ext.fetch.topic_registry cimport TopicRegistry
from kbroker._ext.shared.partition_table cimport PartitionTable
from kbroker._ext.shared.quota_table cimport Limit, QuotaTable
from kbroker._ext.sockets.verdicts cimport Verdicts


cdef class FetchEngine:
    cdef PartitionTable table
    cdef readonly int network_index
    cdef FileCache files
    cdef readonly TopicRegistry registry
    cdef SessionCache sessions
    cdef readonly FollowerReports reports
    cdef readonly int32_t follower_session  # of the last request, 0: none; -1: it was no follower's
    cdef StandingWaits standing
    cdef readonly PartitionReader reader
    cdef FetchPurgatory purgatory
    cdef ReplyPool replies
    cdef readonly FetchEncoder encoder
    cdef OldReplies old_replies
    cdef FetchRequest request
    cdef Verdicts access             # of the client of the request at hand
    cdef uint8_t listener            # index of the one that it uses
    cdef QuotaTable quotas           # None: there are none
    cdef Limit limit                 # the quota of the client of the request at hand, and for how many bytes
    cdef int64_t prepaid             # it has waited already
    cdef list idle_sessions
    cdef int64_t now_ms
    cdef int32_t bytes_max
    cdef FetchReply completed_first
    cdef FetchReply completed_last
    cdef readonly uint64_t parked_total
    cdef readonly uint64_t follower_bytes    # of responses to followers

    # Serve one request. `body` is the request after its header, used only during the call. Returns the reply,
    # or None when the request is parked; then the reply comes out of next_completed(), with this token.
    # Raises FetchDecodeError (ValueError) on malformed bytes: close the connection, naming the reason.
    cdef FetchReply handle(
        self, const uint8_t* body, Py_ssize_t size, int16_t version, int32_t correlation_id, uint64_t token,
        int64_t now_ms,
    )
    # A WAKE named this slot: look again at the requests parked on it.
    cdef int wake(self, int32_t slot, int64_t now_ms) except -1
    # An io worker was restarted: look again at the requests parked on its slots (slot % worker_count).
    cdef int wake_worker(self, int worker, int worker_count, int64_t now_ms) except -1
    # The same io worker must get reports on followers again.
    cdef int report_again(self, int worker) except -1
    # The connection of a follower's session was closed.
    cdef int end_follower(self, int32_t session_id) except -1
    # Complete the requests whose deadline is at or before now_ms.
    cdef int expire(self, int64_t now_ms) except -1
    # The next deadline, -1 when nothing is parked.
    cdef int64_t next_deadline_ms(self) noexcept
    # The next reply of a request that had been parked, None when there is no more. Drain after handle() (a request on
    # a session completes one that is parked on it), wake(), expire() and topic changes.
    cdef FetchReply next_completed(self)
    # The connection of a parked request was closed. A reply already completed still comes out: release() it.
    cdef int cancel(self, uint64_t token) except -1

    # Close files that have not been used for a while. Call it every few seconds, even without requests.
    cdef int housekeep(self, int64_t now_ms) except -1

    cdef FetchReply serve_full(self, FetchTerms* terms)
    cdef FetchReply serve_incremental(self, FetchTerms* terms)
    cdef FetchReply respond_or_park(self, FetchSession session, FetchTerms* terms)
    cdef int64_t read(self, FetchSession session, FetchTerms* terms, bint* failed) except -1
    cdef int attach(self, FetchSession session, FetchTerms* terms) except -1
    cdef FetchReply error_reply(self, FetchTerms* terms, int16_t error)
    cdef FetchSession take_session(self)
    cdef int put_session(self, FetchSession session) except -1
    cdef int64_t over_quota_ms(self, FetchTerms* terms) noexcept
    cdef FetchReply finish(self, FetchSession session, FetchTerms* terms)
    cdef int rouse(self, int32_t slot) except -1
    cdef bint park(self, FetchSession session, FetchTerms* terms, int64_t deadline_ms, int32_t undecided) except *
    cdef bint recheck(self, WaitNode* node, ParkedFetch waiting) except *
    # Returns what the waiting requests on the slot wait for (Waiters).
    cdef int recheck_slot(self, int32_t slot, bint always) except -1
    cdef int decide(self, int32_t slot, int32_t epoch) except -1
    cdef int complete(self, ParkedFetch waiting, int16_t session_error) except -1
