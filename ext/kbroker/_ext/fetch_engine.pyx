"""Serves Fetch requests in a network process, from the partition table and the log files, with no hop.

A request becomes a FetchSession (its own, or the cached one it continues). ``evaluate`` reads each partition's slot and
finds its bytes; the result is encoded at once, or the request is parked: a wait node per partition, this process's bit
in each slot's waiter mask, a deadline in a heap. Cost of a request: one slot read per partition, no Python object per
partition, no system call where there is nothing new, and at most one ``pread`` where the reader goes on at the end of
what it got last. COPY: none of records.

INVARIANT: a parked request is in ``parked``, in the heap, in the list of each of its slots, and leaves all of them at
once. A waiter bit is set before the slot is read for the last time, so no advance of the slot goes unseen.
"""

import os

from libc.stdint cimport uint32_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memset

from kbroker._ext.fetch_segments cimport (
    FIND_CORRUPT,
    FIND_MISSING,
    FIND_NO_PLACE,
    FIND_OK,
    FindStatus,
    LogFiles,
)
from kbroker._ext.fetch_reply cimport ReplyChunk
from kbroker._ext.fetch_sessions cimport FetchTopic
from kbroker._ext.partition_table cimport SLOT_FREE, SLOT_OFFLINE, SLOT_ONLINE

cdef enum:
    NONE = -1
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    NOT_LEADER_OR_FOLLOWER = 6
    INVALID_REQUEST = 42
    KAFKA_STORAGE_ERROR = 56
    FETCH_SESSION_ID_NOT_FOUND = 70
    INVALID_FETCH_SESSION_EPOCH = 71
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 76
    FETCH_SESSION_TOPIC_ID_ERROR = 106
    IDLE_SESSIONS = 64           # BOUND: emptied sessions kept for the next full request
    FILE_IDLE_MS = 30000         # below the default file.delete.delay.ms: disk space returns when a segment goes
    RESPONSE_BYTES_MAX = 0x40000000


cdef int16_t state_error(uint32_t state) noexcept:
    # Error of a partition whose slot is not online. Loading and closed are retriable: the client looks for a leader.
    if state == SLOT_ONLINE:
        return 0
    if state == SLOT_OFFLINE:
        return KAFKA_STORAGE_ERROR
    return UNKNOWN_TOPIC_OR_PARTITION if state == SLOT_FREE else NOT_LEADER_OR_FOLLOWER


cdef int16_t epoch_error(int32_t asked, int32_t current) noexcept:
    # KIP-320: -1 asks for no check.
    if asked < 0 or asked == current:
        return 0
    return FENCED_LEADER_EPOCH if asked < current else UNKNOWN_LEADER_EPOCH


cdef class ParkedFetch:
    """A request that waits for bytes or its deadline. Made and ended by FetchEngine."""


cdef class FetchEngine:
    """One per network process. ``log_dirs`` in the order of ``SlotData.log_dir_index``; ``max_bytes`` caps a response.

    The network loop calls the C methods (see the .pxd); the Python ones are for topic changes, tests and tools.
    """

    def __cinit__(
        self, PartitionTable table not None, int network_index, list log_dirs not None, int32_t max_sessions=1000,
        int32_t max_open_files=1000, int64_t max_bytes=57671680,
    ):
        cdef int32_t slot
        self.table = table
        self.network_index = network_index
        self.log_dirs = list(log_dirs)
        self.files = FileCache(max_open_files)
        self.registry = TopicRegistry()
        self.sessions = SessionCache(max_sessions, network_index)
        self.replies = ReplyPool(self.files)
        self.request = FetchRequest()
        self.idle_sessions = []
        self.bytes_max = <int32_t>min(max_bytes, <int64_t>RESPONSE_BYTES_MAX)
        self.parked = {}
        self.free_node = NONE
        self.slot_heads = <int32_t*>malloc(<size_t>table.capacity * sizeof(int32_t))
        if self.slot_heads == NULL:
            raise MemoryError
        for slot in range(table.capacity):
            self.slot_heads[slot] = NONE

    def __dealloc__(self):
        free(self.results)
        free(self.heap)
        free(self.slot_heads)
        free(self.nodes)

    # ---- topics ------------------------------------------------------------------------------------------------------

    def put_topic(self, str name not None, bytes topic_id not None, list slots not None):
        """Add a topic or change it. slots: partition-table slot by partition, -1 where this broker has no replica.

        Requests parked on the topic are completed when its slots or its id change: drain next_completed() afterwards.
        """
        cdef FetchTopic known = self.registry.get(name.encode())
        cdef list affected = []
        for slot in slots:
            if slot != NONE:
                self.table.check_slot(slot)
        if known is not None:
            affected = known.slot_list()
            if known.topic_id == topic_id and affected == slots:
                return
        self.registry.put(name.encode(), topic_id, slots)
        for slot in affected:
            if slot != NONE:
                self.recheck_slot(slot, True)

    def remove_topic(self, str name not None):
        """Forget a deleted topic and complete what is parked on it; no error when it is not known."""
        cdef FetchTopic known = self.registry.get(name.encode())
        if known is None:
            return
        affected = known.slot_list()
        self.registry.remove(name.encode())
        for slot in affected:
            if slot != NONE:
                self.recheck_slot(slot, True)

    # ---- requests ----------------------------------------------------------------------------------------------------

    cdef FetchReply handle(
        self, const uint8_t* body, Py_ssize_t size, int16_t version, int32_t correlation_id, uint64_t token,
        int64_t now_ms,
    ):
        cdef FetchTerms terms
        cdef FetchRequest request = self.request
        self.now_ms = now_ms
        self.files.now_ms = now_ms
        request.decode(body, size, version)
        terms.token = token
        terms.correlation_id = correlation_id
        terms.version = version
        terms.isolation_level = request.isolation_level
        terms.bytes_max = min(max(request.bytes_max, 0), self.bytes_max)
        terms.bytes_min = min(max(request.bytes_min, 0), terms.bytes_max)
        terms.session_epoch = 0
        if version >= 7 and request.session_epoch != 0 and request.session_epoch != -1:
            terms.kind = FETCH_INCREMENTAL
        else:
            terms.kind = FETCH_FULL if version >= 7 and request.session_epoch == 0 else FETCH_SESSIONLESS
        if request.replica_id >= 0:
            # Replication between brokers has a path of its own; nobody may take part in it unannounced.
            return self.refuse(&terms, INVALID_REQUEST)
        if terms.kind == FETCH_INCREMENTAL:
            return self.serve_incremental(&terms)
        return self.serve_full(&terms)

    cdef FetchReply serve_full(self, FetchTerms* terms):
        """A request that names all its partitions, whether or not it asks for a session."""
        cdef FetchSession session
        if self.request.session_id != 0:
            self.sessions.remove(self.request.session_id)  # replaced (epoch 0) or closed (epoch -1) by its client
        session = self.take_session()
        session.fill(self.request, self.registry)
        return self.answer_or_park(session, terms)

    cdef FetchReply serve_incremental(self, FetchTerms* terms):
        cdef FetchSession session = self.sessions.find(self.request.session_id)
        if session is None:
            return self.error_reply(terms, FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != self.request.session_epoch:
            return self.error_reply(terms, INVALID_FETCH_SESSION_EPOCH)
        if session.by_id != (terms.version >= 13):
            return self.error_reply(terms, FETCH_SESSION_TOPIC_ID_ERROR)
        if session.parked is not None:
            self.complete(session.parked, INVALID_FETCH_SESSION_EPOCH)  # overtaken on another connection
        session.update(self.request, self.registry)
        if session.count == 0:
            self.sessions.remove(session.session_id)
            terms.kind = FETCH_SESSIONLESS
            return self.encode(session, terms, 0, 0)
        self.sessions.touch(session, self.now_ms)
        terms.session_epoch = session.epoch
        return self.answer_or_park(session, terms)

    cdef FetchReply answer_or_park(self, FetchSession session, FetchTerms* terms):
        cdef bint failed = False
        cdef int64_t total = self.evaluate(session, terms, &failed)
        cdef int32_t max_wait_ms = self.request.max_wait_ms
        if not failed and total < terms.bytes_min and max_wait_ms > 0 and session.count > 0:
            self.drop_results()
            if self.park(session, terms, self.now_ms + max_wait_ms):
                return None
            self.evaluate(session, terms, &failed)
        return self.finish(session, terms)

    cdef FetchReply refuse(self, FetchTerms* terms, int16_t error):
        """The same error for the request, as far as its version can say so, and for each partition in it."""
        cdef FetchSession session = self.take_session()
        cdef FetchReply reply
        cdef int32_t entry
        session.fill(self.request, self.registry)
        self.make_results(session.count)
        entry = session.first
        while entry != NONE:
            self.results[self.result_count].entry = entry
            clear_answer(&self.results[self.result_count].answer)
            self.results[self.result_count].answer.error = error
            self.result_count += 1
            entry = session.partitions[entry].next
        reply = self.encode(session, terms, error, 0)
        self.put_session(session)
        return reply

    cdef FetchReply error_reply(self, FetchTerms* terms, int16_t error):
        self.result_count = 0
        return self.encode(None, terms, error, 0)

    cdef FetchSession take_session(self):
        return self.idle_sessions.pop() if self.idle_sessions else FetchSession.__new__(FetchSession)

    cdef int put_session(self, FetchSession session) except -1:
        """Keep a session for reuse, unless it is or was cached: then others may still hold it."""
        if session.session_id == 0 and len(self.idle_sessions) < IDLE_SESSIONS:
            session.clear()
            self.idle_sessions.append(session)
        return 0

    # ---- reading -----------------------------------------------------------------------------------------------------

    cdef int make_results(self, int32_t count) except -1:
        cdef void* grown
        self.result_count = 0
        if count > self.result_capacity:
            count = max(count, 2 * self.result_capacity)
            grown = realloc(self.results, <size_t>count * sizeof(PartitionResult))
            if grown == NULL:
                raise MemoryError
            self.results = <PartitionResult*>grown
            self.result_capacity = count
        return 0

    cdef int64_t evaluate(self, FetchSession session, FetchTerms* terms, bint* failed) except -1:
        """Fill ``results`` in order of service. Returns the bytes found; ``*failed`` when any partition has an error.

        The results own a file reference each; the caller encodes or drops them.
        """
        cdef:
            PartitionAnswer* answer
            FetchPartition* entry
            int64_t left = terms.bytes_max
            int64_t total = 0
            int32_t number
        session.resolve(self.registry)
        self.make_results(session.count)
        number = session.first
        while number != NONE:
            entry = &session.partitions[number]
            self.results[self.result_count].entry = number
            answer = &self.results[self.result_count].answer
            clear_answer(answer)
            answer.index = entry.index
            answer.error = self.read_partition(
                entry, terms.isolation_level, min(<int64_t>entry.bytes_max, left), total == 0, answer
            )
            if answer.error != 0:
                clear_offsets(answer)
                failed[0] = True
            elif answer.size > 0:
                self.files.hold(answer.file)
                total += answer.size
                left = max(left - answer.size, <int64_t>0)
                if terms.isolation_level == 1:
                    answer.aborted_count = 0
            elif terms.isolation_level == 1:
                answer.aborted_count = 0
            self.result_count += 1
            number = entry.next
        return total

    cdef int16_t read_partition(
        self, FetchPartition* entry, int8_t isolation_level, int64_t bytes_max, bint at_least_one,
        PartitionAnswer* answer,
    ) except *:
        """One partition: its offsets and, within the limits, its bytes. Returns the error code."""
        cdef:
            SlotData slot
            LogEnd* end
            FoundRange found
            int16_t error
        if entry.slot < 0:
            return entry.error
        if not self.table.read_slot(entry.slot, &slot):
            return NOT_LEADER_OR_FOLLOWER  # its owner died while writing; the next one repairs it
        error = state_error(slot.state)
        if error == 0:
            error = epoch_error(entry.current_leader_epoch, slot.leader_epoch)
        if error != 0:
            return error
        if entry.fetch_offset < slot.log_start_offset or entry.fetch_offset > slot.log_end.offset:
            return OFFSET_OUT_OF_RANGE
        end = &slot.last_stable if isolation_level == 1 else &slot.high_watermark
        answer.high_watermark = slot.high_watermark.offset
        answer.last_stable_offset = slot.last_stable.offset
        answer.log_start_offset = slot.log_start_offset
        if entry.fetch_offset >= end.offset:
            entry.segment_base_offset = end.segment_base_offset if entry.fetch_offset == end.offset else NONE
            entry.position = end.position
            return 0
        entry.segment_base_offset = NONE
        if bytes_max == 0 and not at_least_one:
            return 0  # the limits are used up
        error = self.find_bytes(entry, &slot, end, bytes_max, at_least_one, &found)
        if error == 0:
            answer.file = found.file
            answer.position = found.position
            answer.size = found.size
        return error

    cdef int16_t find_bytes(
        self, FetchPartition* entry, SlotData* slot, LogEnd* end, int64_t bytes_max, bint at_least_one,
        FoundRange* found,
    ) except *:
        cdef FetchTopic topic = <FetchTopic>entry.topic
        cdef LogFiles log = topic.log_of(entry.index, slot.log_dir_index, self.log_dirs, self.files)
        cdef FindStatus status
        cdef SlotData now
        if log is None:
            return KAFKA_STORAGE_ERROR
        status = log.find_range(entry.fetch_offset, slot, end, bytes_max, at_least_one, found)
        if status == FIND_OK:
            entry.segment_base_offset = found.segment_base_offset
            entry.position = found.position
            return 0
        found.size = 0
        if status == FIND_NO_PLACE:
            return 0
        if status == FIND_CORRUPT:
            return CORRUPT_MESSAGE
        if status == FIND_MISSING:
            # Retention, a deletion or a restart of the owner may have been faster than this reader.
            if not self.table.read_slot(entry.slot, &now):
                return NOT_LEADER_OR_FOLLOWER
            if now.state != SLOT_ONLINE:
                return state_error(now.state)
            if now.slot_incarnation != slot.slot_incarnation:
                return NOT_LEADER_OR_FOLLOWER
            if entry.fetch_offset < now.log_start_offset:
                return OFFSET_OUT_OF_RANGE
        return KAFKA_STORAGE_ERROR

    cdef int drop_results(self) except -1:
        cdef int32_t number
        for number in range(self.result_count):
            if self.results[number].answer.size > 0:
                self.files.drop(self.results[number].answer.file)
        self.result_count = 0
        return 0

    # ---- answering ---------------------------------------------------------------------------------------------------

    cdef FetchReply finish(self, FetchSession session, FetchTerms* terms):
        """Encode ``results`` and end the request; the session remembers what its client has been told."""
        cdef FetchReply reply
        cdef FetchPartition* entry
        cdef int32_t number
        try:
            if terms.kind == FETCH_INCREMENTAL:
                self.select_news(session)
            elif terms.kind == FETCH_FULL and session.count > 0 and self.sessions.admit(session, self.now_ms):
                for number in range(self.result_count):
                    entry = &session.partitions[self.results[number].entry]
                    entry.told_high_watermark = self.results[number].answer.high_watermark
                    entry.told_log_start_offset = self.results[number].answer.log_start_offset
            reply = self.encode(session, terms, 0, session.session_id)
        finally:
            self.drop_results()
        self.put_session(session)
        return reply

    cdef int select_news(self, FetchSession session) except -1:
        """Keep the results an incremental response must hold; move partitions with records to the end (KIP-227)."""
        cdef:
            PartitionAnswer* answer
            FetchPartition* entry
            int32_t kept = 0
            int32_t number
        for number in range(self.result_count):
            answer = &self.results[number].answer
            entry = &session.partitions[self.results[number].entry]
            if (
                answer.size == 0
                and answer.error == 0
                and answer.high_watermark == entry.told_high_watermark
                and answer.log_start_offset == entry.told_log_start_offset
            ):
                continue
            # An error clears the offsets (-1), so the first response after it says them again.
            entry.told_high_watermark = answer.high_watermark
            entry.told_log_start_offset = answer.log_start_offset
            if answer.size > 0:
                session.move_to_end(self.results[number].entry)
            self.results[kept] = self.results[number]
            kept += 1
        self.result_count = kept
        return 0

    cdef FetchReply encode(self, FetchSession session, FetchTerms* terms, int16_t error, int32_t session_id):
        """Write ``results``; neighbours of one topic share its entry."""
        cdef:
            FetchReply reply = self.replies.take()
            FetchTopic topic
            void* current = NULL
            bytes key
            int32_t number, run
            int32_t topics = 0
            bint by_id = terms.version >= 13
        reply.token = terms.token
        for number in range(self.result_count):
            if session.partitions[self.results[number].entry].topic != current:
                current = session.partitions[self.results[number].entry].topic
                topics += 1
        reply.begin(terms.version, terms.correlation_id, error, session_id, topics)
        number = 0
        while number < self.result_count:
            topic = <FetchTopic>session.partitions[self.results[number].entry].topic
            run = number + 1
            while (
                run < self.result_count
                and session.partitions[self.results[run].entry].topic == <void*>topic
            ):
                run += 1
            key = topic.topic_id if by_id else topic.name
            reply.begin_topic(<const uint8_t*><const char*>key, len(key), run - number)
            while number < run:
                reply.add_partition(&self.results[number].answer)
                number += 1
            reply.end_topic()
        reply.end()
        return reply

    # ---- parking -----------------------------------------------------------------------------------------------------

    cdef bint park(self, FetchSession session, FetchTerms* terms, int64_t deadline_ms) except *:
        """Wait for the slots of the session. False when one of them has advanced meanwhile: answer now."""
        cdef:
            ParkedFetch waiting = ParkedFetch.__new__(ParkedFetch)
            WaitNode* node
            int32_t entry = session.first
            int32_t number
            int32_t slot
            bint ready = False
        if terms.token in self.parked:
            raise ValueError(f"token {terms.token} is parked already")
        waiting.terms = terms[0]
        waiting.session = session
        waiting.deadline_ms = deadline_ms
        waiting.heap_index = NONE
        waiting.first_node = NONE
        self.parked[terms.token] = waiting
        session.parked = waiting
        self.heap_push(waiting)
        self.parked_total += 1
        while entry != NONE and not ready:
            slot = session.partitions[entry].slot
            number = self.take_node()
            node = &self.nodes[number]
            node.request = <void*>waiting
            node.entry = entry
            node.slot = slot
            node.counted = 0
            node.next_of_request = waiting.first_node
            waiting.first_node = number
            node.previous_of_slot = NONE
            node.next_of_slot = self.slot_heads[slot]
            if node.next_of_slot != NONE:
                self.nodes[node.next_of_slot].previous_of_slot = number
            self.slot_heads[slot] = number
            # The bit first, then the slot: a writer publishes first and takes the bits then, so one sees the other.
            self.table.add_waiter(slot, self.network_index)
            ready = self.recheck(node, waiting)
            entry = session.partitions[entry].next
        if ready:
            self.unpark(waiting)
        return not ready

    cdef bint recheck(self, WaitNode* node, ParkedFetch waiting) except *:
        """Count one partition of a parked request anew. True when the request is to be completed."""
        cdef:
            FetchPartition* entry = &waiting.session.partitions[node.entry]
            SlotData slot
            LogEnd* end
            FoundRange found
            int64_t available = 0
        if not self.table.read_slot(node.slot, &slot) or slot.state != SLOT_ONLINE:
            return True
        if epoch_error(entry.current_leader_epoch, slot.leader_epoch) != 0:
            return True
        if entry.fetch_offset < slot.log_start_offset or entry.fetch_offset > slot.log_end.offset:
            return True
        end = &slot.last_stable if waiting.terms.isolation_level == 1 else &slot.high_watermark
        if entry.fetch_offset < end.offset:
            if entry.segment_base_offset < 0:
                if self.find_bytes(entry, &slot, end, 0, False, &found) != 0:
                    return True
            if entry.segment_base_offset != end.segment_base_offset:
                return True  # the rest of a sealed segment and more: as much as one response brings
            available = min(max(end.position - entry.position, <int64_t>0), <int64_t>entry.bytes_max)
        waiting.available += available - node.counted
        node.counted = available
        return waiting.available >= waiting.terms.bytes_min

    cdef int recheck_slot(self, int32_t slot, bint always) except -1:
        """Look at every request parked on the slot; complete those that are ready, or all of them."""
        cdef:
            int32_t number = self.slot_heads[slot]
            ParkedFetch waiting
            list ready = []
        while number != NONE:
            waiting = <ParkedFetch>self.nodes[number].request
            if always or self.recheck(&self.nodes[number], waiting):
                ready.append(waiting)
            number = self.nodes[number].next_of_slot
        for waiting in ready:
            if waiting.first_node != NONE:  # not completed by another of its partitions meanwhile
                self.complete(waiting, 0)
        return 0

    cdef int wake(self, int32_t slot, int64_t now_ms) except -1:
        if slot < 0 or slot >= self.table.capacity or self.slot_heads[slot] == NONE:
            return 0
        self.now_ms = now_ms
        self.files.now_ms = now_ms
        self.recheck_slot(slot, False)
        if self.slot_heads[slot] != NONE:
            # The writer took our bit when it sent the message. Set it again, then look again.
            self.table.add_waiter(slot, self.network_index)
            self.recheck_slot(slot, False)
        return 0

    cdef int expire(self, int64_t now_ms) except -1:
        self.now_ms = now_ms
        self.files.now_ms = now_ms
        while self.heap_count > 0 and (<ParkedFetch>self.heap[0]).deadline_ms <= now_ms:
            self.complete(<ParkedFetch>self.heap[0], 0)
        return 0

    cdef int64_t next_deadline_ms(self) noexcept:
        return (<ParkedFetch>self.heap[0]).deadline_ms if self.heap_count > 0 else NONE

    cdef int complete(self, ParkedFetch waiting, int16_t session_error) except -1:
        """Answer a parked request with what is there now, or with an error of its session."""
        cdef FetchReply reply
        cdef bint failed = False
        self.unpark(waiting)
        if waiting.terms.kind == FETCH_INCREMENTAL and waiting.session.epoch != waiting.terms.session_epoch:
            session_error = INVALID_FETCH_SESSION_EPOCH
        if session_error != 0:
            reply = self.error_reply(&waiting.terms, session_error)
        else:
            self.evaluate(waiting.session, &waiting.terms, &failed)
            reply = self.finish(waiting.session, &waiting.terms)
        if self.completed_first is None:
            self.completed_first = reply
        else:
            self.completed_last.next_completed = reply
        self.completed_last = reply
        return 0

    cdef FetchReply next_completed(self):
        cdef FetchReply reply = self.completed_first
        if reply is not None:
            self.completed_first = reply.next_completed
            reply.next_completed = None
            if self.completed_first is None:
                self.completed_last = None
        return reply

    cdef int cancel(self, uint64_t token) except -1:
        cdef ParkedFetch waiting = self.parked.get(token)
        if waiting is not None:
            self.unpark(waiting)
            self.put_session(waiting.session)
        return 0

    cdef int unpark(self, ParkedFetch waiting) except -1:
        cdef int32_t number = waiting.first_node
        cdef int32_t following
        cdef WaitNode* node
        while number != NONE:
            node = &self.nodes[number]
            following = node.next_of_request
            if node.previous_of_slot == NONE:
                self.slot_heads[node.slot] = node.next_of_slot
            else:
                self.nodes[node.previous_of_slot].next_of_slot = node.next_of_slot
            if node.next_of_slot != NONE:
                self.nodes[node.next_of_slot].previous_of_slot = node.previous_of_slot
            node.next_of_request = self.free_node
            self.free_node = number
            number = following
        waiting.first_node = NONE
        self.heap_remove(waiting)
        waiting.session.parked = None
        self.parked.pop(waiting.terms.token, None)
        return 0

    cdef int32_t take_node(self) except -1:
        cdef int32_t number = self.free_node
        cdef int32_t capacity
        cdef void* grown
        if number == NONE:
            # BOUND: one node per partition of a parked request, at most one parked request per connection.
            capacity = max(2 * self.node_capacity, 64)
            grown = realloc(self.nodes, <size_t>capacity * sizeof(WaitNode))
            if grown == NULL:
                raise MemoryError
            self.nodes = <WaitNode*>grown
            for number in range(self.node_capacity, capacity):
                self.nodes[number].next_of_request = number + 1
            self.nodes[capacity - 1].next_of_request = NONE
            number = self.node_capacity
            self.node_capacity = capacity
        self.free_node = self.nodes[number].next_of_request
        return number

    # ---- deadlines: a binary heap, smallest first ----------------------------------------------------------------------

    cdef int heap_push(self, ParkedFetch waiting) except -1:
        cdef int32_t capacity
        cdef void* grown
        if self.heap_count == self.heap_capacity:
            capacity = max(2 * self.heap_capacity, 64)
            grown = realloc(self.heap, <size_t>capacity * sizeof(void*))
            if grown == NULL:
                raise MemoryError
            self.heap = <void**>grown
            self.heap_capacity = capacity
        self.heap[self.heap_count] = <void*>waiting
        waiting.heap_index = self.heap_count
        self.heap_count += 1
        self.heap_settle(waiting.heap_index)
        return 0

    cdef int heap_remove(self, ParkedFetch waiting) except -1:
        cdef int32_t hole = waiting.heap_index
        if hole == NONE:
            return 0
        waiting.heap_index = NONE
        self.heap_count -= 1
        if hole < self.heap_count:
            self.heap[hole] = self.heap[self.heap_count]
            (<ParkedFetch>self.heap[hole]).heap_index = hole
            self.heap_settle(hole)
        return 0

    cdef void heap_settle(self, int32_t index) noexcept:
        """Move the entry at ``index`` up or down to where it belongs."""
        cdef:
            void* moving = self.heap[index]
            int64_t deadline_ms = (<ParkedFetch>moving).deadline_ms
            int32_t other
        while index > 0 and deadline_ms < (<ParkedFetch>self.heap[(index - 1) // 2]).deadline_ms:
            other = (index - 1) // 2
            self.heap[index] = self.heap[other]
            (<ParkedFetch>self.heap[index]).heap_index = index
            index = other
        while True:
            other = 2 * index + 1
            if other >= self.heap_count:
                break
            if (
                other + 1 < self.heap_count
                and (<ParkedFetch>self.heap[other + 1]).deadline_ms < (<ParkedFetch>self.heap[other]).deadline_ms
            ):
                other += 1
            if (<ParkedFetch>self.heap[other]).deadline_ms >= deadline_ms:
                break
            self.heap[index] = self.heap[other]
            (<ParkedFetch>self.heap[index]).heap_index = index
            index = other
        self.heap[index] = moving
        (<ParkedFetch>moving).heap_index = index

    cdef int housekeep(self, int64_t now_ms) except -1:
        self.files.close_idle(now_ms - FILE_IDLE_MS)
        return 0

    # ---- Python's view, for tests and tools ----------------------------------------------------------------------------

    def handle_bytes(self, bytes body not None, int version, int32_t correlation_id=0, uint64_t token=0, int64_t now_ms=0):
        """As handle(), but the reply comes as bytes, file ranges read in. None when the request is parked."""
        cdef FetchReply reply = self.handle(
            <const uint8_t*><const char*>body, len(body), <int16_t>version, correlation_id, token, now_ms
        )
        return None if reply is None else reply_bytes(reply)

    def take_completed(self) -> list:
        """[(token, reply bytes)] of requests that had been parked."""
        cdef FetchReply reply = self.next_completed()
        done = []
        while reply is not None:
            done.append((reply.token, reply_bytes(reply)))
            reply = self.next_completed()
        return done

    def handle_reply(self, bytes body not None, int version, int32_t correlation_id=0, uint64_t token=0, int64_t now_ms=0):
        """As handle(); the FetchReply is to be given to finish_reply(), which reads and releases it."""
        return self.handle(
            <const uint8_t*><const char*>body, len(body), <int16_t>version, correlation_id, token, now_ms
        )

    def finish_reply(self, FetchReply reply not None) -> bytes:
        return reply_bytes(reply)

    def wake_slot(self, int32_t slot, int64_t now_ms=0):
        self.wake(slot, now_ms)

    def expire_at(self, int64_t now_ms):
        self.expire(now_ms)

    def cancel_token(self, uint64_t token):
        self.cancel(token)

    def tidy(self, int64_t now_ms):
        self.housekeep(now_ms)

    @property
    def deadline_ms(self):
        """The next deadline, -1 when nothing is parked."""
        return self.next_deadline_ms()

    def log_counts(self, str name not None, int32_t partition):
        """What finding positions in a partition's files has cost, None before its first read."""
        cdef FetchTopic topic = self.registry.get(name.encode())
        cdef LogFiles log = topic.logs[partition]
        return None if log is None else log.counts()

    def counts(self) -> dict:
        """Sizes of what the engine holds."""
        return {
            "parked": len(self.parked),
            "parked_total": self.parked_total,
            "sessions": len(self.sessions),
            "session_evictions": self.sessions.evictions,
            "open_files": self.files.open_count,
            "opened_total": self.files.opened_total,
        }


cdef inline void clear_answer(PartitionAnswer* answer) noexcept:
    memset(answer, 0, sizeof(PartitionAnswer))
    answer.file = NONE
    answer.aborted_count = NONE
    clear_offsets(answer)


cdef inline void clear_offsets(PartitionAnswer* answer) noexcept:
    answer.high_watermark = NONE
    answer.last_stable_offset = NONE
    answer.log_start_offset = NONE


cdef bytes reply_bytes(FetchReply reply):
    """The whole response; releases the reply."""
    cdef list parts = []
    cdef ReplyChunk* chunk
    cdef int32_t number
    for number in range(reply.chunk_count):
        chunk = &reply.chunks[number]
        parts.append((<char*>reply.bytes)[chunk.bytes_offset : chunk.bytes_offset + chunk.bytes_size])
        if chunk.fd >= 0:
            parts.append(os.pread(chunk.fd, chunk.size, chunk.position))
    whole = b"".join(parts)
    if len(whole) != reply.total_size:
        raise OSError(f"a Fetch response of {reply.total_size} bytes has {len(whole)}: a log file was cut")
    reply.release()
    return whole
