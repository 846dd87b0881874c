"""The loop of an io worker: read the lanes, append, and at the end of a turn publish and respond.

``read_lane`` takes PRODUCE messages, whose batches ``produce_intake`` appends, and requests to coordinators. Responses
are sent by ``end_turn``: it syncs the logs that have reached flush.messages, once for all waiters (group commit),
publishes the slots, completes what is now committed (``committed_queue``), and sends responses and wake-ups. It is the
counterpart of ``net_loop``.

The bytes of a batch stay in the arena of its network process until there is a result. When a network process dies, its
batches are dropped before anything reads those bytes again.
"""
from libc.errno cimport EINTR, errno
from libc.stdint cimport int16_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from kbroker._ext.base.error_codes cimport KAFKA_STORAGE_ERROR, NOT_LEADER_OR_FOLLOWER
from kbroker._ext.base.socket_api cimport epoll_event, epoll_wait, monotonic_ns, wall_clock_ms
from kbroker._ext.io.produce_intake cimport ProduceIntake
from kbroker._ext.io.produce_results cimport TurnResults
from kbroker._ext.log.held_batches cimport monotonic_ms
from kbroker._ext.log.log_append cimport LogAppender
from kbroker._ext.log.replica_set cimport END_MOVED, ISR_TO_CHECK, START_MOVED, ReplicaSet
from kbroker._ext.log.txn_verification cimport TxnVerification
from kbroker._ext.coordinator.commit_path cimport CommitPath, part_size
from kbroker._ext.shared.descriptors cimport (
    MSG_FOLLOWER,
    MSG_PRODUCE,
    MSG_REQUEST,
    PART_SIZE_BYTES,
    Envelope,
    FollowerProgress,
    ProduceDescriptor,
    RequestHead,
)
from kbroker._ext.shared.lane cimport Lane
from kbroker._ext.shared.log_figures cimport LogFigures
from kbroker._ext.shared.partition_table cimport WAIT_ALL, PartitionTable
from kbroker._ext.shared.quota_table cimport QuotaTable
from kbroker._ext.shared.request_times cimport ROW_FLUSH, STAGE_TOTAL, RequestTimes

from kbroker.errors import ErrorCode, StorageError, WireError

cdef enum:
    # BOUND: batches appended before the loop publishes and responds, so that one lane does not delay the others.
    TURN_BATCHES = 1024
    # BOUND: how often a turn publishes; commits may lead to further appends. The rest is left for the next turn.
    PASSES_MAX = 8
    EVENTS_MAX = 64
    # A batch that has waited this long for its commit, or up to twice as long, gives back its memory. Most do not.
    NOTE_WAITS_MS = 20


cdef class IoLoop:
    """The lanes of one io worker, and their messages.

    arenas: the request arena of each network process, by index.
    lanes: the lane to each network process, by index.
    on_failure(slot): called when an append or sync took the log directory of that slot offline.
    """

    cdef PartitionTable _table
    cdef list _lanes                  # by network process index
    cdef TurnResults _results
    cdef ProduceIntake _produce
    cdef readonly TxnVerification verification
    cdef object _on_failure
    cdef list _ready                  # (function, arguments): callbacks to run, as something is committed
    cdef list _waiting                # logs with appends that were not committed at the end of their turn
    cdef bint _waits_to_note          # there may be some since the last note_waits
    cdef int64_t _note_waits_ms       # when it is due
    # on_request(network index, message): takes the other messages from the lanes, MSG_REQUEST.
    cdef public object on_request
    cdef readonly int64_t idle_ns     # waiting for events
    cdef RequestTimes _times          # None: nobody wants to know
    cdef readonly set isr_to_check    # slots whose in-sync replicas may have to change
    cdef readonly set starts_moved    # slots of which a follower's log starts elsewhere than before
    cdef public bint shows_followers  # whether consumers may be sent to them: replica.selector.class
    cdef dict _early_followers        # what followers said of logs that are not open: (network index, slot, replica) -> entry
    # Serves all requests that it can before on_request gets the rest; None: none of them.
    cdef public CommitPath commit_path
    cdef public QuotaTable quotas     # of clients; None: nothing is counted

    def __cinit__(self, PartitionTable table, list arenas, list lanes, on_failure):
        assert len(lanes) == len(arenas), (len(lanes), len(arenas))
        self._table = table
        self._lanes = lanes
        self._results = TurnResults.__new__(TurnResults, lanes)
        self._produce = ProduceIntake.__new__(ProduceIntake, table, arenas, self._results, on_failure)
        self.verification = self._produce.verification
        self._on_failure = on_failure
        self._ready = []
        self._waiting = []
        self.isr_to_check = set()
        self.starts_moved = set()
        self._early_followers = {}

    # ---- partitions ----------------------------------------------------------------------------------------------

    def put(self, LogAppender appender):
        """Serve a partition, provided its slot says that this broker is the leader."""
        self._produce.appenders[appender.slot] = appender
        if self._produce.early.count:
            self.note_restarts()
            self._produce.admit(appender.slot)

    def remove(self, int slot, int error_code=NOT_LEADER_OR_FOLLOWER):
        """Stop serving a partition; waiters for a commit get the error."""
        self.fail_waiting(slot, error_code)
        self._produce.appenders.pop(slot, None)

    def fail_waiting(self, int slot, int error_code):
        """Fail the waiters of a log: what was appended will not be committed here."""
        cdef LogAppender appender = self._produce.appenders.get(slot)
        if appender is not None:
            self.fail_log(appender, error_code)

    cdef int fail_log(self, LogAppender appender, int error_code) except -1:
        if error_code == KAFKA_STORAGE_ERROR:
            self._results.fail(appender.slot, <int16_t>error_code)
        if appender.committed.count:
            self._results.call_out(appender.committed.fail, (WireError(ErrorCode(error_code)),))
        return 0

    def set_opening(self, bint opening):
        """While logs are being opened, batches for a log that is not open wait for it; ``put`` appends them.

        Otherwise a producer would get an error because of the restart, and its later batches might be appended first.
        """
        self._produce.opening = opening
        if not opening:
            self._early_followers = {}
            self.note_restarts()
            for slot in list(self._produce.early.by_slot):
                self._produce.admit(slot)

    # ---- lanes ---------------------------------------------------------------------------------------------------

    def read_lane(self, Lane lane):
        """Append what a network process has sent. Raises ValueError if a message is damaged."""
        cdef:
            Envelope envelope
            Py_ssize_t size = 0
            const uint8_t* body
            int64_t now_ms = wall_clock_ms()
            uint32_t taken = 0
        self._results.taken_ns = monotonic_ns()
        while taken < TURN_BATCHES:
            body = lane.receive(&envelope, &size)
            if body == NULL:
                return
            self.note_restart(lane)
            if envelope.kind == MSG_REQUEST:
                taken += self.take_requests(lane, body, size, now_ms)
                continue
            if envelope.kind == MSG_FOLLOWER:
                taken += self.take_followers(lane, body, size, envelope.count)
                continue
            if envelope.kind != MSG_PRODUCE:
                raise ValueError(f"message kind {envelope.kind} on a lane to an io worker")
            if <Py_ssize_t>(envelope.count * sizeof(ProduceDescriptor)) > size:
                raise ValueError(f"{envelope.count} descriptors in {size} bytes")
            self.take_produces(lane.peer_index, <const ProduceDescriptor*>body, envelope.count, now_ms)
            taken += envelope.count

    cdef int take_produces(
        self, int network_index, const ProduceDescriptor* descriptors, uint32_t count, int64_t now_ms
    ) except -1:
        """Append batches. The time that it takes is added to the quotas of their clients that have one for it."""
        cdef uint32_t i = 0, run
        cdef uint64_t keys = 0
        cdef int64_t began
        for i in range(count):
            keys |= descriptors[i].quota_key
        i = 0
        while i < count:
            if keys == 0 or self.quotas is None:
                i += self._produce.take_run(network_index, descriptors + i, count - i, now_ms)
                continue
            began = monotonic_ns()
            run = self._produce.take_run(network_index, descriptors + i, count - i, now_ms)
            self.charge(descriptors + i, run, monotonic_ns() - began)
            i += run
        return 0

    cdef int charge(self, const ProduceDescriptor* descriptors, uint32_t count, int64_t spent_ns) except -1:
        """Share the time of a run among its batches, by their bytes."""
        cdef int64_t now_ms = monotonic_ns() // 1000000
        cdef int64_t size = 0
        cdef uint32_t i
        for i in range(count):
            size += descriptors[i].size + 1
        for i in range(count):
            if descriptors[i].quota_key:
                self.quotas.record_time(
                    descriptors[i].quota_key, descriptors[i].quota_rate,
                    spent_ns * (<int64_t>descriptors[i].size + 1) // size, now_ms)
        return 0

    cdef uint32_t take_requests(
        self, Lane lane, const uint8_t* message, Py_ssize_t size, int64_t now_ms
    ) except? 0:
        """Serve every part of a MSG_REQUEST; returns how many there were. The time that it takes, but for what happens
        later, is added to the quotas of their clients that have one for it.
        """
        cdef Py_ssize_t part
        cdef RequestHead head
        cdef int64_t began, ended
        cdef uint32_t taken = 0
        cdef LogAppender appender
        while size > 0:
            part = part_size(message, size)
            if part >= <Py_ssize_t>(PART_SIZE_BYTES + sizeof(RequestHead)):
                memcpy(&head, message + PART_SIZE_BYTES, sizeof(RequestHead))
            else:
                head.quota_key = 0
            began = monotonic_ns() if head.quota_key and self.quotas is not None else 0
            appender = None if self.commit_path is None else self.commit_path.take(lane, message, part, now_ms)
            if appender is None:
                self._results.call_out(self.on_request, (lane.peer_index, (<const char*>message)[:part]))
            else:
                self._results.touch(appender)
            if began:
                ended = monotonic_ns()
                self.quotas.record_time(head.quota_key, head.quota_rate, ended - began, ended // 1000000)
            message += part
            size -= part
            taken += 1
        return taken

    cdef uint32_t take_followers(self, Lane lane, const uint8_t* message, Py_ssize_t size, uint32_t count) except? 0:
        """Take positions of followers; returns the number of entries."""
        if <Py_ssize_t>(count * sizeof(FollowerProgress)) > size:
            raise ValueError(f"{count} positions of followers in {size} bytes")
        cdef int64_t now_ms = monotonic_ms()
        cdef uint32_t i
        for i in range(count):
            self.take_follower(<const FollowerProgress*>message + i, lane.peer_index, now_ms)
        return count

    cdef int take_follower(self, const FollowerProgress* entry, int network, int64_t now_ms) except -1:
        cdef LogAppender appender = self._produce.appenders.get(entry.slot)
        cdef int news
        if appender is None:
            if self._produce.opening:
                self._early_followers[network, entry.slot, entry.replica_id] = (<const char*>entry)[: sizeof(entry[0])]
            return 0
        if appender.replicas is None or self._table.slots[entry.slot].data.slot_incarnation != entry.slot_incarnation:
            return 0
        news = appender.replicas.note(entry, network, appender.high_watermark.offset, now_ms)
        if news and self.shows_followers:
            appender.replicas.show(&self._table.slots[entry.slot].followers)
        if news & END_MOVED:
            self._results.touch(appender)
        if news & ISR_TO_CHECK:
            self.isr_to_check.add(entry.slot)
            self._results.called_out = True
        if news & START_MOVED:
            self.starts_moved.add(entry.slot)
            self._results.called_out = True
        return 0

    def show_followers(self, int slot, ReplicaSet replicas not None):
        """Others are in sync now, or in another leader epoch."""
        self._table.check_slot(slot)
        if self.shows_followers:
            replicas.show(&self._table.slots[slot].followers)

    def admit_followers(self, int slot):
        """This broker leads the log of a slot now, with followers: take the reports that arrived before it was open."""
        cdef bytes entry
        for key in [key for key in self._early_followers if key[1] == slot]:
            entry = self._early_followers.pop(key)
            self.take_follower(<const FollowerProgress*><const char*>entry, key[0], monotonic_ms())

    cdef int forget_followers(self, int network) except -1:
        """The sessions of a network process have ended with it."""
        cdef LogAppender appender
        self._early_followers = {key: entry for key, entry in self._early_followers.items() if key[0] != network}
        for appender in self._produce.appenders.values():
            if appender.replicas is not None:
                appender.replicas.forget_sessions(network, monotonic_ms())
        return 0

    cdef Lane lane_of(self, int fd):
        cdef Lane lane
        for lane in self._lanes:
            if lane.fd == fd:
                return lane
        return None

    cdef int note_restart(self, Lane lane) except -1:
        """Forget the responses to a network process that has died: to the next one, its tokens mean other requests."""
        if lane.peer_renewed():
            self._results.forget(lane.peer_index)
            if self.commit_path is not None:
                self.commit_path.forget(lane.peer_index)
            self._produce.drop(lane.peer_index)
            self.forget_followers(lane.peer_index)
        return 0

    cdef int note_restarts(self) except -1:
        """Forget the batches of a network process that has died: its arena now belongs to the next one."""
        cdef Lane lane
        for lane in self._lanes:
            self.note_restart(lane)
        return 0

    # ---- verification --------------------------------------------------------------------------------------------

    def verified(self, int64_t token, int error_code=0):
        """The result of a verification: append the batches that wait for it, or fail them with the error (0: none).

        An unknown token is ignored.
        """
        self.note_restarts()
        self._produce.verified(token, error_code)

    def ask_again(self, int64_t after_ms=0):
        """Retry coordinators that could not be reached; call it when ``verification.next_ask_ms`` says so.

        after_ms: as if it were so much later.
        """
        self._produce.ask_again(monotonic_ms() + after_ms)

    def expire_held(self, int64_t after_ms=0):
        """Reject the batches that have waited too long. Call it now and then.

        after_ms: as if it were so much later.
        """
        self._produce.expire(monotonic_ms() + after_ms)

    # ---- the turn ------------------------------------------------------------------------------------------------

    def turns(self, int epoll_fd, int timeout_ms):
        """Serve the lanes, a turn at a time, for ``timeout_ms`` or until something else needs the process.

        Waits with ``epoll_fd``, where the lanes are registered for reading. Returns the other descriptors that are
        readable; there may be none when a lane is full, a log failed or a coordinator was asked. The Python around a
        turn costs more than a turn of small batches.
        """
        cdef:
            epoll_event events[EVENTS_MAX]
            int count, i
            int64_t now_ns = monotonic_ns()
            int64_t now_ms = now_ns // 1000000
            int64_t until_ms = now_ms + timeout_ms
            Lane lane
            list others = []
        self._results.called_out = False
        if self.commit_path is not None:
            self.commit_path.timer_set = False
        while True:
            timeout_ms = <int>max(until_ms - now_ms, <int64_t>0)
            if self._waits_to_note:
                timeout_ms = <int>max(min(self._note_waits_ms - now_ms, <int64_t>timeout_ms), <int64_t>0)
            self.idle_ns -= now_ns
            with nogil:
                count = epoll_wait(epoll_fd, events, EVENTS_MAX, timeout_ms)
            self.idle_ns += monotonic_ns()
            if count < 0 and errno != EINTR:
                raise OSError(errno, "epoll_wait")
            for i in range(count):
                lane = self.lane_of(events[i].data.fd)
                if lane is None:
                    others.append(events[i].data.fd)
                else:
                    self.read_lane(lane)
            now_ns = monotonic_ns()
            now_ms = now_ns // 1000000
            if self._waits_to_note and now_ms >= self._note_waits_ms:
                self._note_waits_ms = now_ms + NOTE_WAITS_MS
                self.note_waits()
            if self.end_turn() or self.has_scheduled() or others or now_ms >= until_ms:
                return others

    cdef bint has_scheduled(self) noexcept:
        """Whether the process may have to do something else, or earlier, than it had when ``turns`` began."""
        return self._results.called_out or (self.commit_path is not None and self.commit_path.timer_set)

    def end_turn(self):
        """Sync, publish, then send the responses and wake-ups, and run the callbacks for what is committed.

        True when something could not be sent yet because a lane is full: come back soon.
        """
        cdef int number
        cdef bint held_back = False
        cdef list ready
        for number in range(PASSES_MAX):
            self.publish_touched()
            held_back = self.send_all()
            if not self._ready:
                break
            ready = self._ready
            self._ready = []
            for function, args in ready:
                self._results.call_out(function, args)
        return held_back

    cdef int publish_touched(self) except -1:
        cdef LogAppender appender
        cdef int concerned
        cdef list touched
        if not self._results.touched:
            return 0
        touched = self._results.touched
        self._results.touched = []
        for appender in touched:
            appender.touched = False
            if appender.fd < 0:  # a write has failed in this turn
                self.fail_log(appender, KAFKA_STORAGE_ERROR)
                continue
            try:
                if appender.needs_sync:
                    self.sync(appender)
                if appender.replicas is not None:
                    appender.raise_high_watermark(monotonic_ms())
                concerned = appender.publish() if appender.dirty else 0
            except StorageError:
                self._results.call_out(self._on_failure, (appender.slot,))
                self.fail_log(appender, KAFKA_STORAGE_ERROR)
                continue
            self._results.wake(appender.slot, self._table.take_waiters(appender.slot, concerned))
            appender.committed.reach(appender.high_watermark.offset, self._ready)
            if appender.committed.count:
                self._waits_to_note = True
                if not appender.committed.is_listed:
                    appender.committed.is_listed = True
                    self._waiting.append(appender)
        return 0

    cdef int sync(self, LogAppender appender) except -1:
        cdef int64_t began = monotonic_ns()
        appender.sync()
        if self._times is not None:
            self._times.record(ROW_FLUSH, STAGE_TOTAL, monotonic_ns() - began)
        return 0

    cdef bint send_all(self) except *:
        cdef Lane lane
        cdef bint held_back = False
        if self.commit_path is not None:
            self.commit_path.has_errors = False
        for lane in self._lanes:
            self.note_restart(lane)
            if not self._results.send(lane):
                held_back = True
            if self.commit_path is not None and not self.commit_path.send(lane):
                held_back = True
        return held_back

    @property
    def is_waiting(self) -> bool:
        """Whether there are waiters for a commit after the turn: then ``expire_waiting`` must be called now and then."""
        return bool(self._waiting)

    def note_waits(self) -> None:
        """Have network processes free the bytes of batches that have waited since the last call."""
        cdef LogAppender appender
        cdef bint has_new = False
        for appender in self._waiting:
            if appender.committed.note_waits():
                has_new = True
        self._waits_to_note = has_new

    def expire_waiting(self, int64_t now_ms) -> list:
        """End the waits for a commit that have lasted too long: (slot, how many)."""
        cdef LogAppender appender
        cdef list found = [], left = []
        for appender in self._waiting:
            late = appender.committed.expire(now_ms)
            if late:
                found.append((appender.slot, late))
            appender.committed.is_listed = appender.committed.count > 0
            if appender.committed.is_listed:
                left.append(appender)
        self._waiting = left
        return found

    @property
    def has_news(self) -> bool:
        """Whether there have been appends or responses since ``end_turn``."""
        return bool(self._results.touched) or not self._results.is_empty()

    def touch(self, LogAppender appender):
        """Make ``end_turn`` sync and publish a log with appends other than produces."""
        self._results.touch(appender)

    def wake(self, int slot):
        """Wake all fetches that wait on a slot which changed outside of a produce; sent by ``end_turn``."""
        self._table.check_slot(slot)
        self._results.wake(slot, self._table.take_waiters(slot, WAIT_ALL))

    # ---- counts --------------------------------------------------------------------------------------------------

    @property
    def early_count(self) -> int:
        """Batches that wait for their log to be opened."""
        return self._produce.early.count

    def keep_figures(self, LogFigures figures not None):
        """Count there what passes through each partition."""
        assert figures.capacity >= self._table.capacity
        self._produce.figures = figures

    def keep_times(self, RequestTimes times):
        """Note there how long syncs take."""
        self._times = times

    @property
    def waiting_count(self) -> int:
        """Operations that wait until what they have appended is committed."""
        cdef LogAppender appender
        cdef Py_ssize_t found = 0
        for appender in self._waiting:
            found += appender.committed.count
        return found

    @property
    def messages_total(self) -> int:
        return self._produce.messages_total

    @property
    def batches_total(self) -> int:
        return self._produce.batches_total

    @property
    def bytes_total(self) -> int:
        return self._produce.bytes_total

    @property
    def failed_total(self) -> int:
        return self._produce.failed_total
