"""Writes the results of a PartitionReader into Fetch responses: which of them, and by which topics.

An incremental response contains only the partitions that have something to tell (KIP-227).
"""

from libc.stdint cimport uint8_t

from kbroker._ext.base.error_codes cimport FENCED_LEADER_EPOCH, NOT_LEADER_OR_FOLLOWER
from kbroker._ext.fetch.fetch_reply cimport PartitionResponse
from kbroker._ext.fetch.fetch_sessions cimport FetchPartition
from kbroker._ext.fetch.topic_registry cimport Topic

cdef enum:
    FIRST_WITH_LEADERS = 16


cdef class FetchEncoder:
    """One per FetchEngine; it encodes the results of the reader's last ``evaluate``."""

    def __cinit__(self, PartitionReader reader not None, ReplyPool replies not None):
        self._reader = reader
        self._replies = replies

    cdef int select_news(self, FetchSession session) except -1:
        """Keep the results an incremental response must hold; move partitions with records to the end (KIP-227)."""
        cdef:
            PartitionResponse* response
            FetchPartition* entry
            int32_t kept = 0
            int32_t number
        for number in range(self._reader.result_count):
            response = &self._reader.results[number].response
            entry = &session.partitions[self._reader.results[number].entry]
            if (
                response.size == 0
                and response.error == 0
                and response.diverging_epoch < 0
                and response.high_watermark == entry.told_high_watermark
                and response.log_start_offset == entry.told_log_start_offset
            ):
                continue
            # An error clears the offsets (-1), so the first response after it contains them again.
            entry.told_high_watermark = response.high_watermark
            entry.told_log_start_offset = response.log_start_offset
            if response.size > 0:
                session.move_to_end(self._reader.results[number].entry)
            self._reader.results[kept] = self._reader.results[number]
            kept += 1
        self._reader.result_count = kept
        return 0

    cdef bytes add_leaders(self, FetchSession session, const FetchTerms* terms):
        """Tell where partitions are that this broker does not lead (KIP-951). Returns the response's tagged fields."""
        cdef object leaders = self.find_leaders(terms.listener)
        cdef PartitionResponse* response
        cdef Topic topic
        cdef int32_t number
        for number in range(self._reader.result_count):
            response = &self._reader.results[number].response
            topic = <Topic>session.partitions[self._reader.results[number].entry].topic
            if topic.name is None or response.error not in (NOT_LEADER_OR_FOLLOWER, FENCED_LEADER_EPOCH):
                continue
            found = leaders.leader(topic.name, response.index)
            if found is not None:
                response.has_leader = True
                response.leader_id, response.leader_epoch = found
        return leaders.tagged_fields()

    cdef FetchReply encode(
        self, FetchSession session, const FetchTerms* terms, int16_t error, int32_t session_id
    ):
        """Write ``results``; neighbours of one topic share its entry."""
        cdef:
            FetchReply reply = self._replies.take()
            Topic topic
            void* current = NULL
            bytes key
            int32_t number, run
            int32_t topics = 0
            bint by_id = terms.version >= 13
            bytes tagged = None
        reply.token = terms.token
        for number in range(self._reader.result_count):
            if session.partitions[self._reader.results[number].entry].topic != current:
                current = session.partitions[self._reader.results[number].entry].topic
                topics += 1
        if self._reader.has_lost_leaders and terms.version >= FIRST_WITH_LEADERS and self.find_leaders is not None:
            tagged = self.add_leaders(session, terms)
        reply.begin(terms.version, terms.correlation_id, error, session_id, topics)
        number = 0
        while number < self._reader.result_count:
            topic = <Topic>session.partitions[self._reader.results[number].entry].topic
            run = number + 1
            while (
                run < self._reader.result_count
                and session.partitions[self._reader.results[run].entry].topic == <void*>topic
            ):
                run += 1
            key = topic.topic_id if by_id else topic.name
            reply.begin_topic(<const uint8_t*><const char*>key, len(key), run - number)
            while number < run:
                reply.add_partition(&self._reader.results[number].response)
                number += 1
            reply.end_topic()
        reply.end(tagged)
        return reply
