"""Serves Fetch requests in a network process, from the partition table and the log files, without another process.

A request becomes a FetchSession (its own, or the cached one it continues). ``evaluate`` reads each partition's slot and
finds its bytes. The response is encoded at once, or the request is parked: a wait node per partition, this process's bit
in each slot's waiter mask, a deadline in a heap. Cost of a request: one slot read per partition, no Python object per
partition, no system call where there is nothing new, and at most one ``pread`` where the reader continues from where it
stopped. COPY: none of records.

A follower is served likewise, up to the log end, and moves nothing by it: the owners of the slots are told where it is
(``follower_reports``), and decide.

INVARIANT: a waiter bit is set before the slot is read for the last time, so no advance of the slot is missed.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize

from kbroker._ext.shared.session_times import region_size

from kbroker._ext.base.error_codes cimport (
    FETCH_SESSION_ID_NOT_FOUND,
    FETCH_SESSION_TOPIC_ID_ERROR,
    INVALID_FETCH_SESSION_EPOCH,
)
from kbroker._ext.fetch.fetch_purgatory cimport ANY_REPLICA, FETCH_FULL, FETCH_INCREMENTAL, FETCH_LOG_END
from kbroker._ext.fetch.fetch_purgatory cimport FETCH_SESSIONLESS, WaitNode, latest_ms
from kbroker._ext.fetch.fetch_reader cimport end_for
from kbroker._ext.fetch.fetch_reply cimport reply_bytes
from kbroker._ext.fetch.fetch_segments cimport FoundRange, LogFiles
from kbroker._ext.fetch.fetch_sessions cimport FetchPartition
from kbroker._ext.fetch.topic_registry cimport Topic
from kbroker._ext.shared.partition_table cimport WAIT_COMMITTED, WAIT_WRITTEN, LogEnd, SlotData, Waiters
from kbroker._ext.shared.session_times cimport SessionTimes
from kbroker._ext.sockets.verdicts cimport unrestricted

cdef enum:
    NONE = -1
    FIRST_OF_FORMAT_2 = 4
    IDLE_SESSIONS = 64           # BOUND: emptied sessions kept for the next full request
    FILE_IDLE_MS = 30000         # below the default file.delete.delay.ms: disk space returns when a segment goes
    RESPONSE_BYTES_MAX = 0x40000000
    # What counts for the quota of a client besides records: about as many bytes as a response and a partition of it take.
    RESPONSE_OVERHEAD = 20
    PARTITION_OVERHEAD = 42


cdef inline Waiters waits_for(ParkedFetch waiting) noexcept:
    return WAIT_WRITTEN if waiting.terms.isolation == FETCH_LOG_END else WAIT_COMMITTED


cdef class FetchEngine:
    """One per network process. ``log_dirs`` in the order of ``SlotData.log_dir_index``; ``max_bytes`` caps a response.

    io_workers: how many there are. times: where the requests of followers are noted.

    The network loop calls the C methods (see the .pxd); the Python ones are for topic changes, tests and tools.
    """

    def __cinit__(
        self, PartitionTable table not None, int network_index, list log_dirs not None, int32_t max_sessions=1000,
        int32_t max_open_files=1000, int64_t max_bytes=57671680, int io_workers=1, SessionTimes times=None,
    ):
        if times is None:  # nobody reads them
            times = SessionTimes(bytearray(region_size(network_index + 1)), network_index)
        self.table = table
        self.network_index = network_index
        self.files = FileCache(max_open_files)
        self.registry = TopicRegistry()
        self.reports = FollowerReports(io_workers)
        self.standing = StandingWaits(table.capacity)
        self.sessions = SessionCache(max_sessions, network_index, times, self.reports, self.standing)
        self.replies = ReplyPool(self.files)
        self.request = FetchRequest()
        self.access = unrestricted()
        self.idle_sessions = []
        self.bytes_max = <int32_t>min(max_bytes, <int64_t>RESPONSE_BYTES_MAX)
        self.purgatory = FetchPurgatory(table.capacity)
        self.reader = PartitionReader(table, self.registry, self.files, log_dirs)
        self.encoder = FetchEncoder(self.reader, self.replies)
        self.old_replies = OldReplies(self.reader, self.replies)

    # ---- topics ------------------------------------------------------------------------------------------------------

    def put_topic(
        self, str name not None, bytes topic_id not None, list slots not None, list incarnations=None,
        bint rejects_old=False, bint stores_zstd=False, bint internal=False,
    ):
        """Add a topic or change it. slots: partition-table slot by partition, -1 where this broker has no replica.

        incarnations: what ``slot_incarnation`` of each slot must be, None for any; a slot with another one now belongs
        to another replica and gets NOT_LEADER_OR_FOLLOWER. rejects_old: reject Fetch below version 4 with
        UNSUPPORTED_VERSION instead of converting. stores_zstd: reject readers that do not know zstd (below version 10).
        internal: clients may not produce to it.
        Requests parked on the topic are completed when its slots or its id change: drain next_completed() afterwards.
        """
        cdef Topic known = self.registry.get(name.encode())
        cdef list affected = []
        if incarnations is not None and len(incarnations) != len(slots):
            raise ValueError(f"{len(slots)} slots and {len(incarnations)} incarnations")
        for slot in slots:
            if slot != NONE:
                self.table.check_slot(slot)
        if known is not None:
            known.rejects_old = rejects_old
            known.stores_zstd = stores_zstd
            known.internal = internal
            affected = known.slot_list()
            if known.topic_id == topic_id and known.has_slots(slots, incarnations):
                return
        self.registry.put(name.encode(), topic_id, slots, incarnations)
        known = self.registry.get(name.encode())
        known.rejects_old = rejects_old
        known.stores_zstd = stores_zstd
        known.internal = internal
        for slot in affected:
            if slot != NONE:
                self.rouse(slot)
                self.recheck_slot(slot, True)

    def remove_topic(self, str name not None):
        """Forget a deleted topic and complete the requests parked on it; an unknown topic is no error."""
        cdef Topic known = self.registry.get(name.encode())
        if known is None:
            return
        affected = known.slot_list()
        self.registry.remove(name.encode())
        for slot in affected:
            if slot != NONE:
                self.rouse(slot)
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
        terms.replica_id = request.replica_id
        terms.listener = self.listener
        terms.isolation = request.isolation_level
        if request.replica_id >= 0 or request.replica_id == ANY_REPLICA:
            terms.isolation = FETCH_LOG_END
        self.follower_session = 0 if request.replica_id >= 0 else NONE
        terms.bytes_max = min(max(request.bytes_max, 0), self.bytes_max)
        terms.limit = self.limit
        terms.prepaid = self.prepaid
        if terms.replica_id >= 0:
            terms.limit.key = 0
        elif terms.limit.key:
            # As in Kafka: a response that is larger than the quota at its fullest would not be sent.
            terms.bytes_max = <int32_t>min(<int64_t>terms.bytes_max, self.quotas.burst_amount(&terms.limit))
        terms.bytes_min = min(max(request.bytes_min, 0), terms.bytes_max)
        terms.session_epoch = 0
        if version >= 7 and request.session_epoch != 0 and request.session_epoch != -1:
            terms.kind = FETCH_INCREMENTAL
        else:
            terms.kind = FETCH_FULL if version >= 7 and request.session_epoch == 0 else FETCH_SESSIONLESS
        if terms.kind == FETCH_INCREMENTAL:
            return self.serve_incremental(&terms)
        return self.serve_full(&terms)

    cdef FetchReply serve_full(self, FetchTerms* terms):
        """A request that names all its partitions, whether or not it asks for a session."""
        cdef FetchSession session
        if self.request.session_id != 0:
            session = self.sessions.find(self.request.session_id, terms.replica_id)
            if session is not None:
                self.sessions.remove(session)  # replaced (epoch 0) or closed (epoch -1) by its client
        session = self.take_session()
        session.fill(self.request, self.registry, self.access)
        if terms.replica_id >= 0:
            self.attach(session, terms)
        return self.respond_or_park(session, terms)

    cdef int attach(self, FetchSession session, FetchTerms* terms) except -1:
        """Report a follower to the owners; its session begins before that, so that they know its cell."""
        session.reports = self.reports
        session.last_used_ms = self.now_ms
        if terms.kind == FETCH_FULL and session.count > 0:
            self.sessions.admit_follower(session, self.now_ms)
        self.follower_session = session.session_id
        return 0

    cdef FetchReply serve_incremental(self, FetchTerms* terms):
        cdef FetchSession session = self.sessions.find(self.request.session_id, terms.replica_id)
        if session is None:
            return self.error_reply(terms, FETCH_SESSION_ID_NOT_FOUND)
        if terms.replica_id >= 0:
            self.follower_session = session.session_id
        if session.epoch != self.request.session_epoch:
            return self.error_reply(terms, INVALID_FETCH_SESSION_EPOCH)
        if session.by_id != (terms.version >= 13):
            return self.error_reply(terms, FETCH_SESSION_TOPIC_ID_ERROR)
        if session.parked is not None:
            self.complete(session.parked, INVALID_FETCH_SESSION_EPOCH)  # the session is used on another connection
        session.update(self.request, self.registry, self.access)
        if session.count == 0:
            self.sessions.remove(session)
            terms.kind = FETCH_SESSIONLESS
            return self.encoder.encode(session, terms, 0, 0)
        self.sessions.touch(session, self.now_ms)
        terms.session_epoch = session.epoch
        return self.respond_or_park(session, terms)

    cdef FetchReply respond_or_park(self, FetchSession session, FetchTerms* terms):
        cdef bint failed = False
        cdef int64_t total = self.read(session, terms, &failed)
        cdef int32_t max_wait_ms = self.request.max_wait_ms
        cdef int32_t undecided = self.reader.undecided
        if not failed and (total < terms.bytes_min or undecided) and max_wait_ms > 0 and session.count > 0:
            self.reader.drop_results()
            if self.park(session, terms, latest_ms(terms, self.now_ms, max_wait_ms, undecided), undecided):
                return None
            self.reader.evaluate(session, terms, &failed)
        return self.finish(session, terms)

    cdef int64_t read(self, FetchSession session, FetchTerms* terms, bint* failed) except -1:
        """Evaluate a request that has just arrived: its client may have to go to another replica."""
        cdef FetchRequest request = self.request
        if self.reader.select is None or request.rack_size <= 0 or terms.isolation == FETCH_LOG_END:
            return self.reader.evaluate(session, terms, failed)
        rack = PyBytes_FromStringAndSize(<const char*>request.rack, request.rack_size)
        return self.reader.evaluate_in_rack(session, terms, rack, failed)

    cdef FetchReply error_reply(self, FetchTerms* terms, int16_t error):
        self.reader.result_count = 0
        return self.encoder.encode(None, terms, error, 0)

    cdef FetchSession take_session(self):
        return self.idle_sessions.pop() if self.idle_sessions else FetchSession.__new__(FetchSession)

    cdef int put_session(self, FetchSession session) except -1:
        """Keep a session object for reuse, unless it is or was cached: then others may still hold it."""
        if session.session_id == 0 and len(self.idle_sessions) < IDLE_SESSIONS:
            session.clear()
            self.idle_sessions.append(session)
        return 0

    # ---- responses ---------------------------------------------------------------------------------------------------

    cdef int64_t over_quota_ms(self, FetchTerms* terms) noexcept:
        """Count ``results``, unless they exceed the client's quota: then how long it has to wait for them (KIP-219).

        What it waits for is counted at once, and paid by its next request on the connection: so clients that share a
        quota wait in turn, and do not all come back at the same time. A client that has nothing to wait for gets a
        batch that is larger than its quota: it would not be smaller later.
        """
        cdef int64_t size = RESPONSE_OVERHEAD
        cdef int64_t before_us, throttle_ms
        cdef int32_t number
        for number in range(self.reader.result_count):
            size += PARTITION_OVERHEAD + self.reader.results[number].response.size
        before_us = self.quotas.ahead_us(&terms.limit, self.now_ms)
        self.quotas.record(&terms.limit, size - terms.prepaid, self.now_ms)
        if terms.prepaid > 0:
            terms.prepaid = max(terms.prepaid - size, <int64_t>0)
            return 0
        throttle_ms = self.quotas.excess_ms(&terms.limit, self.now_ms)
        if throttle_ms > 0 and before_us > 0:
            terms.prepaid = size
            return throttle_ms
        return 0

    cdef FetchReply finish(self, FetchSession session, FetchTerms* terms):
        """Encode ``results`` and end the request; the session records the content of the response."""
        cdef FetchReply reply
        cdef FetchPartition* entry
        cdef int32_t number
        cdef int64_t throttle_ms = self.over_quota_ms(terms) if terms.limit.key else 0
        if throttle_ms > 0:
            self.reader.drop_results()
            reply = self.encoder.encode(session, terms, 0, session.session_id)
            reply.throttle_ms = <int32_t>throttle_ms
            reply.prepaid = terms.prepaid
            self.put_session(session)
            return reply
        try:
            if terms.kind == FETCH_INCREMENTAL:
                self.encoder.select_news(session)
            elif terms.kind == FETCH_FULL and session.count > 0 and (
                session.cell >= 0 if terms.replica_id >= 0 else self.sessions.admit(session, self.now_ms)
            ):
                for number in range(self.reader.result_count):
                    entry = &session.partitions[self.reader.results[number].entry]
                    entry.told_high_watermark = self.reader.results[number].response.high_watermark
                    entry.told_log_start_offset = self.reader.results[number].response.log_start_offset
            if terms.version < FIRST_OF_FORMAT_2:
                self.old_replies.convert(session, terms)
            reply = self.encoder.encode(session, terms, 0, session.session_id)
            reply.prepaid = terms.prepaid
            if self.reader.figures is not None:
                self.reader.count_sent(session, terms)
            if terms.replica_id >= 0:
                reply.throttle_ms = -1
                self.follower_bytes += reply.total_size
                self.reader.count_throttled(session)
            if session.standing is not None:
                self.reader.settle(session, terms, self.network_index)
        finally:
            self.reader.drop_results()
            self.old_replies.clear()
        self.put_session(session)
        return reply

    # ---- purgatory ---------------------------------------------------------------------------------------------------

    cdef int rouse(self, int32_t slot) except -1:
        """The slot has changed: put its standing partitions back into their sessions' order of service."""
        cdef int32_t number = self.standing.head(slot)
        cdef int32_t entry
        cdef FetchSession session
        while number != NONE:
            session = <FetchSession>self.standing.nodes[number].session
            entry = self.standing.nodes[number].entry
            session.activate(entry)
            if session.parked is not None:
                self.purgatory.wait_for(<ParkedFetch>session.parked, entry, slot)
            number = self.standing.head(slot)
        return 0

    cdef bint park(self, FetchSession session, FetchTerms* terms, int64_t deadline_ms, int32_t undecided) except *:
        """Park the request on the slots of the session. False if one of them has advanced meanwhile: respond now.

        undecided: wait for as many answers of owners instead, whatever there is to send.
        """
        cdef:
            ParkedFetch waiting = self.purgatory.enter(session, terms, deadline_ms)
            WaitNode* node
            int32_t entry = session.first
            bint ready = False
        self.parked_total += 1
        waiting.undecided = undecided
        while entry != NONE and not ready:
            node = self.purgatory.wait_for(waiting, entry, session.partitions[entry].slot)
            # The bit first, then the slot: a writer publishes first and takes the bits then, so one sees the other.
            self.table.add_waiter(node.slot, self.network_index, waits_for(waiting))
            ready = self.recheck(node, waiting)
            entry = session.partitions[entry].next
        if ready:
            self.purgatory.leave(waiting)
        return not ready

    cdef bint recheck(self, WaitNode* node, ParkedFetch waiting) except *:
        """Recount one partition of a parked request. True if the request can be completed."""
        cdef:
            FetchPartition* entry = &waiting.session.partitions[node.entry]
            SlotData slot
            LogEnd* end
            FoundRange found
            int64_t available = 0
        if not self.table.read_slot(node.slot, &slot) or (
            waiting.undecided == 0 and self.reader.must_respond(&slot, entry, &waiting.terms)
        ):
            return True
        end = end_for(&slot, waiting.terms.isolation)
        if entry.fetch_offset < end.offset and not self.reader.is_throttled(entry, &waiting.terms):
            if entry.segment_base_offset < 0:
                if self.reader.find_bytes(entry, &waiting.terms, &slot, end, 0, False, &found) != 0:
                    return waiting.undecided == 0
            if entry.segment_base_offset != end.segment_base_offset:
                return waiting.undecided == 0  # the rest of a sealed segment and more: as much as one response can hold
            available = min(max(end.position - entry.position, <int64_t>0), <int64_t>entry.bytes_max)
        waiting.available += available - node.counted
        node.counted = available
        return waiting.undecided == 0 and waiting.available >= waiting.terms.bytes_min

    cdef int recheck_slot(self, int32_t slot, bint always) except -1:
        """Check every request parked on the slot; complete those that are ready, or all of them."""
        cdef:
            int32_t number = self.purgatory.slot_heads[slot]
            ParkedFetch waiting
            list ready = []
            int waits = 0
        while number != NONE:
            waiting = <ParkedFetch>self.purgatory.nodes[number].request
            if always or self.recheck(&self.purgatory.nodes[number], waiting):
                ready.append(waiting)
            else:
                waits |= waits_for(waiting)
            number = self.purgatory.nodes[number].next_of_slot
        for waiting in ready:
            if waiting.first_node != NONE:  # not completed by another of its partitions meanwhile
                self.complete(waiting, 0)
        return waits

    cdef int wake(self, int32_t slot, int64_t now_ms) except -1:
        cdef int waits
        if slot < 0 or slot >= self.table.capacity:
            return 0
        if self.standing.count:
            self.rouse(slot)
        if self.purgatory.slot_heads[slot] == NONE:
            return 0
        self.now_ms = now_ms
        self.files.now_ms = now_ms
        waits = self.recheck_slot(slot, False)
        if waits:
            # The writer took our bit when it sent the message. Set it again, then look again.
            if waits & WAIT_COMMITTED:
                self.table.add_waiter(slot, self.network_index, WAIT_COMMITTED)
            if waits & WAIT_WRITTEN:
                self.table.add_waiter(slot, self.network_index, WAIT_WRITTEN)
            self.recheck_slot(slot, False)
        return 0

    cdef int wake_worker(self, int worker, int worker_count, int64_t now_ms) except -1:
        cdef int32_t slot = worker
        while slot < self.table.capacity:
            self.wake(slot, now_ms)
            slot += worker_count
        return 0

    cdef int report_again(self, int worker) except -1:
        cdef FetchSession session
        self.reports.drop_bundle(worker)
        for session in self.sessions.followers.values():
            session.report_again(self.table, worker, self.reports.worker_count)
        return 0

    cdef int end_follower(self, int32_t session_id) except -1:
        cdef FetchSession session = self.sessions.followers.get(session_id)
        return 0 if session is None else self.sessions.remove(session)

    def take_epoch_questions(self) -> list:
        """The epochs whose ends have to be asked for: (slot, its incarnation, its leader epoch, epoch)."""
        return self.reader.take_epoch_questions()

    def put_epoch_ends(self, list responses not None, int64_t now_ms):
        """Take [(question, (epoch, end offset))], None for an end that cannot be determined now.

        Completes the requests that wait for it: drain next_completed() afterwards.
        """
        self.now_ms = now_ms
        self.files.now_ms = now_ms
        self.reader.put_epoch_ends(responses)
        for question, _ in responses:
            self.decide(question[0], question[3])

    cdef int decide(self, int32_t slot, int32_t epoch) except -1:
        """The end of an epoch of the slot is known, or cannot be determined now."""
        cdef:
            int32_t number = self.purgatory.slot_heads[slot]
            ParkedFetch waiting
            list ready = []
        while number != NONE:
            waiting = <ParkedFetch>self.purgatory.nodes[number].request
            if (
                waiting.undecided > 0
                and waiting.session.partitions[self.purgatory.nodes[number].entry].last_fetched_epoch == epoch
            ):
                waiting.undecided -= 1
                if waiting.undecided == 0:
                    ready.append(waiting)
            number = self.purgatory.nodes[number].next_of_slot
        for waiting in ready:
            self.complete(waiting, 0)
        return 0

    cdef int expire(self, int64_t now_ms) except -1:
        cdef ParkedFetch waiting
        self.now_ms = now_ms
        self.files.now_ms = now_ms
        waiting = self.purgatory.first_due(now_ms)
        while waiting is not None:
            self.complete(waiting, 0)
            waiting = self.purgatory.first_due(now_ms)
        return 0

    cdef int64_t next_deadline_ms(self) noexcept:
        return self.purgatory.next_deadline_ms()

    cdef int complete(self, ParkedFetch waiting, int16_t session_error) except -1:
        """Complete a parked request with the data there is now, or with an error of its session."""
        cdef FetchReply reply
        cdef bint failed = False
        self.purgatory.leave(waiting)
        if waiting.terms.kind == FETCH_INCREMENTAL and waiting.session.epoch != waiting.terms.session_epoch:
            session_error = INVALID_FETCH_SESSION_EPOCH
        if session_error != 0:
            reply = self.error_reply(&waiting.terms, session_error)
        else:
            self.reader.evaluate(waiting.session, &waiting.terms, &failed)
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
        cdef ParkedFetch waiting = self.purgatory.find(token)
        if waiting is not None:
            self.purgatory.leave(waiting)
            self.put_session(waiting.session)
        return 0

    cdef int housekeep(self, int64_t now_ms) except -1:
        self.files.close_idle(now_ms - FILE_IDLE_MS)
        return 0

    # ---- Python's view, for tests and tools ----------------------------------------------------------------------------

    def handle_bytes(self, bytes body not None, int version, int32_t correlation_id=0, uint64_t token=0, int64_t now_ms=0):
        """Like handle(), but returns the reply as bytes, with file ranges read in. None if the request is parked."""
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
        """Like handle(); pass the FetchReply to finish_reply(), which reads and releases it."""
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

    def end_session(self, int32_t session_id):
        self.end_follower(session_id)

    def tell_again(self, int worker):
        self.report_again(worker)

    def tidy(self, int64_t now_ms):
        self.housekeep(now_ms)

    @property
    def deadline_ms(self):
        """The next deadline, -1 when nothing is parked."""
        return self.next_deadline_ms()

    def log_counts(self, str name not None, int32_t partition):
        """Counters of position lookups in a partition's files, None before its first read."""
        cdef Topic topic = self.registry.get(name.encode())
        cdef LogFiles log = topic.logs[partition]
        return None if log is None else log.counts()

    def take_damages(self) -> list:
        """Damage found since the last call: (slot, its incarnation, segment base offset, position, problem)."""
        found = self.reader.damages
        if found:
            self.reader.damages = []
        return found

    def counts(self) -> dict:
        """The numbers of objects in the engine."""
        return {
            "parked": len(self.purgatory),
            "parked_total": self.parked_total,
            "sessions": len(self.sessions),
            "followers": len(self.sessions.followers),
            "standing": self.standing.count,
            "session_evictions": self.sessions.evictions,
            "open_files": self.files.open_count,
            "opened_total": self.files.opened_total,
            "copied_bytes": self.replies.copied_bytes,
        }
