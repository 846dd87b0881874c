"""The io worker side of a produce.

``read_lane`` takes PRODUCE messages: each descriptor names a record batch in a network process's arena; the batch is
checked where it lies and appended by the LogAppender of its slot. Nothing is answered before ``end_turn``, which syncs
the logs whose flush.messages is reached once for all that wait (group commit), publishes the slots, and sends
answers and wake-ups. Per batch in the steady state: no Python object, one pwrite for it and its neighbours of one log.

The first batch of a transaction in a log is held until the transaction coordinator has said that the partition belongs
to the transaction (KIP-890); what follows it from the same producer waits behind it. When this process has just been
started, everything for a log waits until that is open. The bytes stay in the arena: the network process keeps them until
there is a result, and what it held is dropped here when it dies.
"""
import logging

from libc.errno cimport EINTR, errno
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memmove
from posix.time cimport CLOCK_REALTIME, clock_gettime, timespec

from kbroker._ext.buffers cimport region_bytes
from kbroker._ext.commit_desk cimport CommitDesk, part_size
from kbroker._ext.crc32c cimport crc32c
from kbroker._ext.descriptors cimport (
    MSG_PRODUCE,
    MSG_PRODUCE_RESULT,
    MSG_REQUEST,
    MSG_WAKE,
    Envelope,
    ProduceDescriptor,
    ProduceResult,
)
from kbroker._ext.held_batches cimport EarlyBatches, HeldBatch, Question, held_batch, monotonic_ms
from kbroker._ext.lane cimport LANE_ITEMS_MAX, LANE_TEXTS_MAX, Lane
from kbroker._ext.log_append cimport RUN_MAX, AppendResult, LogAppender, is_plain
from kbroker._ext.log_transactions cimport NO_QUESTION, NOT_ASKED, Verification
from kbroker._ext.partition_table cimport (
    SLOT_FREE,
    SLOT_OFFLINE,
    SLOT_ONLINE,
    PartitionTable,
    SlotData,
)
from kbroker._ext.produce_results cimport (
    ResultBundle,
    WakeBundle,
    add_indexes,
    add_text,
    add_wake,
    new_result,
)
from kbroker._ext.producer_state cimport ProducerEntry
from kbroker._ext.record_batch cimport (
    ATTRIBUTE_CODEC_MASK,
    ATTRIBUTE_TRANSACTIONAL,
    BATCH_ATTRIBUTES_AT,
    BATCH_BASE_SEQUENCE_AT,
    BATCH_CRC_AT,
    BATCH_HEADER_BYTES,
    BATCH_MAGIC_AT,
    BATCH_PRODUCER_EPOCH_AT,
    BATCH_PRODUCER_ID_AT,
    CODEC_ZSTD,
)
from kbroker._ext.socket_api cimport epoll_event, epoll_wait, monotonic_ns
from kbroker._ext.wire cimport load_i16, load_i32, load_i64, load_u32

from kbroker.errors import StorageError

log = logging.getLogger(__name__)

cdef enum:
    ERROR_UNKNOWN_SERVER_ERROR = -1
    ERROR_UNKNOWN_TOPIC_OR_PARTITION = 3
    ERROR_NOT_LEADER_OR_FOLLOWER = 6
    ERROR_REQUEST_TIMED_OUT = 7
    ERROR_NETWORK_EXCEPTION = 13
    ERROR_COORDINATOR_LOAD_IN_PROGRESS = 14
    ERROR_COORDINATOR_NOT_AVAILABLE = 15
    ERROR_NOT_COORDINATOR = 16
    ERROR_NOT_ENOUGH_REPLICAS = 19
    ERROR_CLUSTER_AUTHORIZATION_FAILED = 31
    ERROR_INVALID_REQUEST = 42
    ERROR_INVALID_PRODUCER_EPOCH = 47
    ERROR_INVALID_TXN_STATE = 48
    ERROR_CONCURRENT_TRANSACTIONS = 51
    ERROR_TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    ERROR_KAFKA_STORAGE_ERROR = 56
    ERROR_UNSUPPORTED_COMPRESSION_TYPE = 76
    ERROR_PRODUCER_FENCED = 90
    ERROR_TRANSACTION_ABORTABLE = 120
    WAKES_MAX = 8192
    # BOUND: batches appended before the loop publishes and answers, so that one lane does not delay the others.
    TURN_BATCHES = 1024
    # BOUND: batches that wait for a transaction coordinator; more are refused with a retriable error.
    HELD_MAX = 10000
    # How long a coordinator that cannot be reached is asked again, and how often.
    VERIFY_PATIENCE_MS = 10000
    ASK_AGAIN_MS = 20
    FIRST_OF_BATCHES = 3     # Produce versions that carry format 2 and nothing else
    FIRST_WITH_ZSTD = 7
    FIRST_ABORTABLE = 11     # Produce versions whose clients know TRANSACTION_ABORTABLE,
    FIRST_ADDING = 12        # and those that add the partition to the transaction (KIP-890, part 2)
    EVENTS_MAX = 64


cdef class ProduceEngine:
    """Appends for the partitions of one io worker.

    arenas: the request arena of each network process, by index.
    lanes: the lane to each network process, by index.
    on_failure(slot): called when an append or sync took the log directory of that slot offline.
    """

    cdef PartitionTable _table
    cdef list _arenas                 # keeps the regions mapped
    cdef uint8_t** _bases
    cdef int64_t* _sizes
    cdef int _network_count
    cdef ResultBundle* _bundles
    cdef WakeBundle* _wakes
    cdef list _lanes                  # by network process index
    cdef dict _appenders              # slot -> LogAppender
    cdef dict _replicas_needed        # slot -> min.insync.replicas, only where it is above 1
    cdef list _touched                # appenders with something to publish
    cdef object _on_failure
    cdef bint _called_out             # Python code of the process ran since `turns` began
    # on_request(network index, message): takes what else comes over the lanes, a MSG_REQUEST.
    cdef public object on_request
    # Takes what it can of them before; None: nothing.
    cdef public CommitDesk desk
    cdef object _on_verify
    cdef bint _verify_all
    cdef dict _questions              # token -> Question
    cdef dict _waiting                # (slot, producer id) -> Question
    cdef int64_t _last_token
    cdef list _asked_again            # (monotonic ms, token): questions to a coordinator that could not be reached
    cdef public int64_t verify_patience_ms
    cdef bint _opening                # logs are being opened: what comes for one that is not, waits
    cdef EarlyBatches _early
    cdef readonly int held_count      # batches that wait for a transaction coordinator
    cdef readonly int64_t verifications_total
    cdef readonly int64_t verifications_failed
    cdef readonly int64_t batches_total
    cdef readonly int64_t bytes_total
    cdef readonly int64_t failed_total

    def __cinit__(self, PartitionTable table, list arenas, list lanes, on_failure):
        cdef int i
        cdef Py_ssize_t size = 0
        self._table = table
        self._arenas = arenas
        self._lanes = lanes
        assert len(lanes) == len(arenas), (len(lanes), len(arenas))
        self._network_count = len(arenas)
        self._on_failure = on_failure
        self._appenders = {}
        self._replicas_needed = {}
        self._touched = []
        self._on_verify = None
        self._questions = {}
        self._waiting = {}
        self._asked_again = []
        self.verify_patience_ms = VERIFY_PATIENCE_MS
        self._early = EarlyBatches.__new__(EarlyBatches, arenas)
        self._bases = <uint8_t**>calloc(max(1, len(arenas)), sizeof(uint8_t*))
        self._sizes = <int64_t*>calloc(max(1, len(arenas)), sizeof(int64_t))
        self._bundles = <ResultBundle*>calloc(max(1, len(arenas)), sizeof(ResultBundle))
        self._wakes = <WakeBundle*>calloc(max(1, len(arenas)), sizeof(WakeBundle))
        if self._bases == NULL or self._sizes == NULL or self._bundles == NULL or self._wakes == NULL:
            raise MemoryError()
        for i in range(self._network_count):
            self._bases[i] = region_bytes(arenas[i], &size)
            self._sizes[i] = size

    def __dealloc__(self):
        cdef int i
        if self._bundles != NULL:
            for i in range(self._network_count):
                free(self._bundles[i].items)
                free(self._bundles[i].slots)
                free(self._bundles[i].texts)
        if self._wakes != NULL:
            for i in range(self._network_count):
                free(self._wakes[i].slots)
        free(self._wakes)
        free(self._bundles)
        free(self._bases)
        free(self._sizes)

    def put(self, LogAppender appender, int replicas_needed=1):
        """Serve a partition, or take note of its new min.insync.replicas."""
        self._appenders[appender.slot] = appender
        self._replicas_needed.pop(appender.slot, None)
        if replicas_needed > 1:
            self._replicas_needed[appender.slot] = replicas_needed
        if self._early.count:
            self.admit(appender.slot)

    def remove(self, int slot):
        """Stop serving a partition."""
        self._appenders.pop(slot, None)
        self._replicas_needed.pop(slot, None)

    def read_lane(self, Lane lane):
        """Append what a network process has sent. Raises ValueError when a message is damaged."""
        cdef:
            Envelope envelope
            Py_ssize_t size = 0
            const uint8_t* body
            int64_t now_ms = wall_clock_ms()
            uint32_t i, taken = 0
        while taken < TURN_BATCHES:
            body = lane.receive(&envelope, &size)
            if body == NULL:
                return
            self.note_restart(lane)
            if envelope.kind == MSG_REQUEST:
                taken += self.take_requests(lane, body, size, now_ms)
                continue
            if envelope.kind != MSG_PRODUCE:
                raise ValueError(f"message kind {envelope.kind} on a lane to an io worker")
            if <Py_ssize_t>(envelope.count * sizeof(ProduceDescriptor)) > size:
                raise ValueError(f"{envelope.count} descriptors in {size} bytes")
            i = 0
            while i < envelope.count:
                i += self.take_run(lane.peer_index, <const ProduceDescriptor*>body + i, envelope.count - i, now_ms)
            taken += envelope.count

    cdef uint32_t take_requests(
        self, Lane lane, const uint8_t* message, Py_ssize_t size, int64_t now_ms
    ) except? 0:
        """Have every part of a MSG_REQUEST served; returns how many there were."""
        cdef Py_ssize_t part
        cdef uint32_t taken = 0
        cdef LogAppender appender
        while size > 0:
            part = part_size(message, size)
            appender = None if self.desk is None else self.desk.take(lane, message, part, now_ms)
            if appender is None:
                self._called_out = True
                self.on_request(lane.peer_index, (<const char*>message)[:part])
            else:
                self._touched.append(appender)
                if self.desk.timer_set:
                    self.desk.timer_set = False
                    self._called_out = True
            message += part
            size -= part
            taken += 1
        return taken

    def turns(self, int epoll_fd, int timeout_ms):
        """Serve the lanes, a turn at a time, for ``timeout_ms`` or until something else needs the process.

        Waits with ``epoll_fd``, where the lanes are registered for reading. Returns the other descriptors that are
        readable; there may be none when a lane is full, a log failed or a coordinator was asked. The Python around a
        turn costs more than a turn of small batches.
        """
        cdef:
            epoll_event events[EVENTS_MAX]
            int count, i
            int64_t now_ms = monotonic_ns() // 1000000
            int64_t until_ms = now_ms + timeout_ms
            Lane lane
            list others = []
        self._called_out = False
        while True:
            timeout_ms = <int>max(until_ms - now_ms, <int64_t>0)
            with nogil:
                count = epoll_wait(epoll_fd, events, EVENTS_MAX, timeout_ms)
            if count < 0 and errno != EINTR:
                raise OSError(errno, "epoll_wait")
            for i in range(count):
                lane = self.lane_of(events[i].data.fd)
                if lane is None:
                    others.append(events[i].data.fd)
                else:
                    self.read_lane(lane)
            now_ms = monotonic_ns() // 1000000
            if self.end_turn() or self._called_out or others or now_ms >= until_ms:
                return others

    cdef Lane lane_of(self, int fd):
        cdef Lane lane
        for lane in self._lanes:
            if lane.fd == fd:
                return lane
        return None

    cdef int note_restart(self, Lane lane) except -1:
        """Forget the answers to a network process that is gone: its tokens mean other requests to the next one."""
        if lane.peer_renewed():
            self._bundles[lane.peer_index].count = 0
            self._bundles[lane.peer_index].texts_size = 0
            if self.desk is not None:
                self.desk.forget(lane.peer_index)
            if self.held_count:
                self.drop_held(lane.peer_index)
            if self._early.count:
                self._early.drop(lane.peer_index)
        return 0

    cdef uint32_t take_run(self, int network_index, const ProduceDescriptor* d, uint32_t count, int64_t now_ms) except 0:
        """Take the first batches, those of one log that need nothing but to be appended together; returns how many."""
        cdef AppendResult results[RUN_MAX]
        cdef LogAppender appender
        cdef uint32_t i, run = 0
        if count > 1 and d[1].slot == d.slot:
            while (
                run < min(count, <uint32_t>RUN_MAX) and d[run].slot == d.slot and d[run].api_version >= FIRST_WITH_ZSTD
                and d[run].size >= BATCH_HEADER_BYTES and self.refusal(network_index, &d[run]) == 0
                and is_plain(self._bases[network_index] + d[run].arena_offset)
            ):
                run += 1
        if run > 1:
            appender = <LogAppender>self._appenders[d.slot]
            try:
                run = appender.append_run(self._bases[network_index], d, run, now_ms, results)
            except StorageError:
                self._called_out = True
                self._on_failure(d.slot)
                run = 0  # from now on the log refuses what comes
            for i in range(run):
                self.add_result(network_index, &d[i], &results[i], appender, None)
            if run > 0:
                return run
        self.take_one(network_index, d, now_ms)
        return 1

    cdef int take_one(self, int network_index, const ProduceDescriptor* d, int64_t now_ms) except -1:
        cdef int16_t refused = self.refusal(network_index, d)
        cdef const uint8_t* batch
        if refused == ERROR_NOT_LEADER_OR_FOLLOWER and self._opening and self._early.keep(
            network_index, d, self._bases[network_index] + d.arena_offset
        ):
            return 0
        if refused == 0 and d.size >= BATCH_HEADER_BYTES:
            batch = self._bases[network_index] + d.arena_offset
            # A damaged batch may claim anything; append_one says that it is damaged.
            if (
                batch[BATCH_MAGIC_AT] >= 2
                and load_i16(batch + BATCH_ATTRIBUTES_AT) & ATTRIBUTE_TRANSACTIONAL
                and self.is_intact(d, batch)
            ):
                if d.transactional_id_size == 0:
                    refused = ERROR_TRANSACTIONAL_ID_AUTHORIZATION_FAILED
                elif self.hold(network_index, d, batch, now_ms, &refused):
                    return 0
        return self.append_one(network_index, d, now_ms, NO_QUESTION, refused, None)

    cdef bint is_intact(self, const ProduceDescriptor* d, const uint8_t* batch) except *:
        """Whether the checksum is right; not looked at where an open transaction leaves nothing to ask."""
        cdef LogAppender appender = <LogAppender>self._appenders[d.slot]
        cdef ProducerEntry entry = appender.transactions.producers.entries.get(load_i64(batch + BATCH_PRODUCER_ID_AT))
        if d.transactional_id_size and entry is not None and entry.current_txn_first_offset >= 0:
            return True
        return load_u32(batch + BATCH_CRC_AT) == crc32c(batch + BATCH_ATTRIBUTES_AT, d.size - BATCH_ATTRIBUTES_AT)

    cdef int append_one(
        self, int network_index, const ProduceDescriptor* d, int64_t now_ms, int64_t verification, int16_t refused,
        object text
    ) except -1:
        cdef:
            AppendResult result
            LogAppender appender = None
            const uint8_t* batch = self._bases[network_index] + d.arena_offset
        result.error_code = refused
        result.bad_record_index = -1
        result.base_offset = -1
        result.log_append_time_ms = -1
        result.log_start_offset = -1
        if refused == 0 and FIRST_OF_BATCHES <= d.api_version < FIRST_WITH_ZSTD and is_zstd(batch, d.size):
            # COMPAT: consumers of that age know no zstd either (KIP-110).
            result.error_code = ERROR_UNSUPPORTED_COMPRESSION_TYPE
            text = "zstd needs version 7 of Produce"
        elif refused == 0:
            appender = <LogAppender>self._appenders[d.slot]
            try:
                # COMPAT: an old version may carry a batch of format 2, which is then treated as one.
                if d.api_version < FIRST_OF_BATCHES and d.size > BATCH_MAGIC_AT and batch[BATCH_MAGIC_AT] < 2:
                    appender.append_message_set(batch, d.size, now_ms, &result)
                else:
                    appender.append(batch, d.size, now_ms, &result, verification)
            except StorageError:
                result.error_code = ERROR_KAFKA_STORAGE_ERROR
                result.base_offset = -1
                self._called_out = True
                self._on_failure(d.slot)
        return self.add_result(network_index, d, &result, appender, text)

    cdef int add_result(
        self, int network_index, const ProduceDescriptor* d, const AppendResult* result, LogAppender appender,
        object text
    ) except -1:
        cdef ResultBundle* bundle = &self._bundles[network_index]
        cdef ProduceResult* out = new_result(bundle, d.slot)
        out.request = d.request
        out.ordinal = d.ordinal
        out.error_code = result.error_code
        out.base_offset = result.base_offset
        out.log_append_time_ms = result.log_append_time_ms
        out.log_start_offset = result.log_start_offset
        out.bad_record_index = result.bad_record_index
        out.error_text_size = 0
        out.more_bad_records = 0
        if result.error_code == 0:
            self.batches_total += 1
            self.bytes_total += d.size
            if appender.dirty:
                self._touched.append(appender)
        else:
            self.failed_total += 1
            if appender is not None:
                text = appender.error_text
            if text is not None:
                add_text(bundle, out, text)
            if appender is not None and appender.more_bad_records:
                add_indexes(bundle, out, appender.more_bad_records)
        return 0

    # ---- verification ------------------------------------------------------------------------------------------

    def set_verifier(self, on_verify, bint verify_all=True):
        """on_verify(slot, producer_id, producer_epoch, transactional_id, api_version, token) is asked whether, or from
        Produce version 12 on has to see to it that, the partition belongs to the producer's transaction. The answer is
        ``verified(token, error_code)``, at once or later, always.

        verify_all: ask for every version (``transaction.partition.verification.enable``). None: ask nobody.
        """
        self._on_verify = on_verify
        self._verify_all = verify_all

    cdef bint hold(
        self, int network_index, const ProduceDescriptor* d, const uint8_t* batch, int64_t now_ms, int16_t* refused
    ) except *:
        """Whether a transactional batch waits now. If not, it is to be appended, or *refused says why not."""
        cdef:
            LogAppender appender = <LogAppender>self._appenders[d.slot]
            int64_t producer_id = load_i64(batch + BATCH_PRODUCER_ID_AT)
            int16_t epoch = load_i16(batch + BATCH_PRODUCER_EPOCH_AT)
            int64_t verification
            Question question
            HeldBatch held
        if self._on_verify is None or producer_id < 0 or (not self._verify_all and d.api_version < FIRST_ADDING):
            return False
        verification = appender.transactions.begin_verification(
            producer_id, epoch, load_i32(batch + BATCH_BASE_SEQUENCE_AT), d.api_version >= FIRST_ADDING, now_ms)
        key = (d.slot, producer_id)
        question = self._waiting.get(key)
        if verification == NO_QUESTION and question is None:
            return False
        if self.held_count >= HELD_MAX:
            refused[0] = ERROR_NOT_ENOUGH_REPLICAS
            return False
        held = held_batch(network_index, d, batch)
        held.producer_epoch = epoch
        # Without a question of its own its transaction must still be open when its turn comes.
        held.verification = NOT_ASKED if verification == NO_QUESTION else verification
        if question is not None:
            question.batches.append(held)
            self.held_count += 1
            return True
        try:
            transactional_id = (<const char*>batch - d.transactional_id_back)[:d.transactional_id_size].decode()
        except UnicodeDecodeError:
            refused[0] = ERROR_INVALID_REQUEST
            return False
        question = Question.__new__(Question)
        question.key = key
        question.producer_epoch = epoch
        question.transactional_id = transactional_id
        question.api_version = d.api_version
        question.give_up_ms = min(monotonic_ms() + self.verify_patience_ms, held.deadline_ms)
        question.batches = [held]
        self._waiting[key] = question
        self._last_token += 1
        self._questions[self._last_token] = question
        self.held_count += 1
        self.verifications_total += 1
        self.ask(self._last_token, question)
        return True

    cdef int ask(self, int64_t token, Question question) except -1:
        slot, producer_id = question.key
        try:
            self._called_out = True
            self._on_verify(
                slot, producer_id, question.producer_epoch, question.transactional_id, question.api_version, token)
        except Exception:
            log.exception("asking whether a transaction of producer %d goes on failed", producer_id)
            self.verified(token, ERROR_UNKNOWN_SERVER_ERROR)
        return 0

    def ask_again(self, int64_t after_ms=0):
        """Ask coordinators again that could not be reached; call it when ``next_ask_ms`` says so, on the monotonic clock.

        after_ms: as if it were so much later.
        """
        cdef int64_t now = monotonic_ms() + after_ms
        cdef Question question
        due = [token for at, token in self._asked_again if at <= now]
        self._asked_again = [entry for entry in self._asked_again if entry[0] > now]
        for token in due:
            question = self._questions[token]
            if question.batches:
                self.ask(token, question)
            else:
                self.verified(token, ERROR_REQUEST_TIMED_OUT)  # nobody waits for it any more

    @property
    def next_ask_ms(self) -> int | None:
        return self._asked_again[0][0] if self._asked_again else None

    def verified(self, int64_t token, int error_code=0):
        """The answer to a question: append what waits for it, or refuse that with the error (0: none).

        A token that is not open is ignored.
        """
        cdef Question question
        cdef HeldBatch held
        cdef int64_t now_ms = wall_clock_ms()
        cdef int16_t refused
        cdef object text
        cdef bint waits = False
        cdef int i
        for i in range(self._network_count):
            # The arena bytes of a process that is gone are somebody else's by now.
            self.note_restart(<Lane>self._lanes[i])
        question = self._questions.get(token)
        if question is None:
            return
        if question.batches and is_unreachable(error_code) and monotonic_ms() < question.give_up_ms:
            # It is being started again or loads its log. Whoever is told so would have to send everything once more.
            self._asked_again.append((monotonic_ms() + ASK_AGAIN_MS, token))
            return
        del self._questions[token]
        del self._waiting[question.key]
        if error_code:
            self.verifications_failed += 1
        batches = question.batches
        question.batches = []
        self.held_count -= len(batches)
        for held in batches:
            if held.producer_epoch != question.producer_epoch:
                self.take_one(held.network_index, &held.descriptor, now_ms)
                continue
            text = None
            refused = self.refusal(held.network_index, &held.descriptor)
            if refused == 0 and not error_code and (waits or self.is_void(held)):
                # COMPAT: what came in between may be the marker of the transaction before this one: the producer began
                # anew when that was being ended. So the answer is to be had again, and all that is behind waits, too.
                waits = True
                self.take_one(held.network_index, &held.descriptor, now_ms)
                continue
            if refused == 0 and error_code:
                refused = produce_error(error_code, held.descriptor.api_version)
                text = f"the partition could not be verified to be part of the transaction (error {error_code})"
            self.append_one(held.network_index, &held.descriptor, now_ms, held.verification, refused, text)

    cdef bint is_void(self, HeldBatch held) except *:
        """Whether a marker was written after the question was asked."""
        cdef LogAppender appender = <LogAppender>self._appenders[held.descriptor.slot]
        cdef const uint8_t* batch = self._bases[held.network_index] + held.descriptor.arena_offset
        cdef Verification asked = appender.transactions.verifications.get(load_i64(batch + BATCH_PRODUCER_ID_AT))
        return held.verification > 0 and (asked is None or asked.number != held.verification)

    def expire_held(self, int64_t after_ms=0):
        """Refuse the batches that have waited too long. Call it now and then. after_ms: as if it were so much later."""
        cdef Question question
        cdef HeldBatch held
        cdef int64_t now = monotonic_ms() + after_ms
        if self._early.count:
            for held in self._early.expired(now):
                self.append_one(
                    held.network_index, &held.descriptor, 0, NO_QUESTION, ERROR_REQUEST_TIMED_OUT,
                    "the log was not opened in time")
        for question in self._questions.values():
            due = [held for held in question.batches if held.deadline_ms <= now]
            if not due:
                continue
            question.batches = [held for held in question.batches if held.deadline_ms > now]
            self.held_count -= len(due)
            for held in due:
                self.append_one(
                    held.network_index, &held.descriptor, 0, NO_QUESTION, ERROR_NOT_ENOUGH_REPLICAS,
                    "the transaction coordinator did not answer in time")

    cdef int drop_held(self, int network_index) except -1:
        cdef Question question
        cdef HeldBatch held
        for question in self._questions.values():
            before = len(question.batches)
            question.batches = [held for held in question.batches if held.network_index != network_index]
            self.held_count -= before - len(question.batches)
        return 0

    # ---- logs that are not open yet ------------------------------------------------------------------------------

    def set_opening(self, bint opening):
        """While logs are being opened, what is sent to one that is not waits for it; ``put`` lets it in.

        Otherwise a producer would be told of a restart by an error, and what it sent behind that might come first.
        """
        self._opening = opening
        if not opening:
            for slot in list(self._early.by_slot):
                self.admit(slot)

    cdef int admit(self, int32_t slot) except -1:
        """Append what waited for a log, or refuse it if there is none."""
        cdef HeldBatch held
        cdef int64_t now_ms = wall_clock_ms()
        cdef int i
        for i in range(self._network_count):
            self.note_restart(<Lane>self._lanes[i])
        for held in self._early.take(slot):
            self.take_one(held.network_index, &held.descriptor, now_ms)
        return 0

    # ---- the turn ----------------------------------------------------------------------------------------------

    cdef int16_t refusal(self, int network_index, const ProduceDescriptor* d) except -1:
        """The error of a descriptor that cannot be appended at all, 0 when it can be tried."""
        cdef SlotData slot
        if d.slot < 0 or d.slot >= self._table.capacity:
            return ERROR_UNKNOWN_TOPIC_OR_PARTITION
        if d.arena_offset > <uint64_t>self._sizes[network_index] or (
            d.size > <uint64_t>self._sizes[network_index] - d.arena_offset
        ):
            raise ValueError(f"a batch at {d.arena_offset} of {d.size} bytes is outside the arena")
        if d.transactional_id_back > d.arena_offset or d.transactional_id_size > d.transactional_id_back:
            raise ValueError(f"a transactional id {d.transactional_id_back} bytes before {d.arena_offset} is not")
        if not self._table.read_slot(d.slot, &slot):
            return ERROR_NOT_LEADER_OR_FOLLOWER
        if slot.slot_incarnation < d.slot_incarnation:
            return ERROR_NOT_LEADER_OR_FOLLOWER  # the broker has just been started, and its log is not opened yet
        if slot.slot_incarnation > d.slot_incarnation or slot.state == SLOT_FREE:
            return ERROR_UNKNOWN_TOPIC_OR_PARTITION  # its topic was deleted
        if slot.state == SLOT_OFFLINE:
            return ERROR_KAFKA_STORAGE_ERROR
        if slot.state != SLOT_ONLINE or d.slot not in self._appenders:
            return ERROR_NOT_LEADER_OR_FOLLOWER
        if d.acks == -1 and self._replicas_needed and d.slot in self._replicas_needed:
            return ERROR_NOT_ENOUGH_REPLICAS  # this broker is the only replica in sync
        return 0

    def end_turn(self):
        """Sync, publish, then send the answers and the wake-ups.

        True when something could not be sent yet because a lane is full: come back soon.
        """
        cdef LogAppender appender
        cdef int i
        cdef bint held_back = False
        for appender in self._touched:
            if not appender.dirty:
                continue  # named twice in this turn
            try:
                if appender.needs_sync:
                    appender.sync()
                appender.publish()
            except StorageError:
                self.fail_results(appender.slot)
                self._called_out = True
                self._on_failure(appender.slot)
                continue
            self.collect_wakes(appender.slot)
        self._touched.clear()
        if self.desk is not None:
            self.desk.release()
        for i in range(self._network_count):
            self.note_restart(<Lane>self._lanes[i])
            if not self.send_results(i) or not self.send_wakes(i):
                held_back = True
            if self.desk is not None and not self.desk.send(<Lane>self._lanes[i]):
                held_back = True
        return held_back

    @property
    def early_count(self) -> int:
        """Batches that wait for their log to be opened."""
        return self._early.count

    @property
    def has_news(self) -> bool:
        """Whether something was appended or refused since ``end_turn``."""
        cdef int i
        if self._touched:
            return True
        for i in range(self._network_count):
            if self._bundles[i].count or self._wakes[i].count:
                return True
        return False

    def touch(self, LogAppender appender):
        """See to it that ``end_turn`` syncs and publishes what was appended outside of a produce."""
        self._touched.append(appender)

    def wake(self, int slot):
        """Wake the fetches that wait on a slot which changed outside of a produce; sent by ``end_turn``."""
        self._table.check_slot(slot)
        self.collect_wakes(slot)

    cdef int collect_wakes(self, int32_t slot) except -1:
        cdef uint64_t mask = self._table.take_waiters(slot)
        cdef int i = 0
        while mask:
            if mask & 1 and i < self._network_count:
                add_wake(&self._wakes[i], slot)
            mask >>= 1
            i += 1
        return 0

    cdef bint send_results(self, int network_index) except -1:
        """Send a network process its results; False when its lane is full."""
        cdef:
            ResultBundle* bundle = &self._bundles[network_index]
            Lane lane = <Lane>self._lanes[network_index]
            uint32_t done = 0, texts_done = 0, part, texts
        while done < bundle.count:
            part = 0
            texts = 0
            while done + part < bundle.count and part < LANE_ITEMS_MAX and texts < LANE_TEXTS_MAX:
                texts += bundle.items[done + part].error_text_size
                texts += <uint32_t>sizeof(int32_t) * bundle.items[done + part].more_bad_records
                part += 1
            if not lane.send(
                MSG_PRODUCE_RESULT, part, bundle.items + done, part * sizeof(ProduceResult),
                bundle.texts + texts_done, texts,
            ):
                break
            done += part
            texts_done += texts
        bundle.count -= done
        bundle.texts_size -= texts_done
        if done and bundle.count:
            memmove(bundle.items, bundle.items + done, bundle.count * sizeof(ProduceResult))
            memmove(bundle.slots, bundle.slots + done, bundle.count * sizeof(int32_t))
            memmove(bundle.texts, bundle.texts + texts_done, bundle.texts_size)
        return bundle.count == 0

    cdef bint send_wakes(self, int network_index) except -1:
        cdef WakeBundle* wakes = &self._wakes[network_index]
        cdef Lane lane
        cdef uint32_t part
        while wakes.count:
            lane = <Lane>self._lanes[network_index]
            part = min(wakes.count, <uint32_t>WAKES_MAX)
            if not lane.send(MSG_WAKE, part, wakes.slots + wakes.count - part, part * sizeof(int32_t), NULL, 0):
                return False
            wakes.count -= part
        return True

    cdef void fail_results(self, int32_t slot) noexcept:
        """A sync failed: what was appended to this slot in this turn is not acknowledged."""
        cdef int i
        cdef uint32_t j
        cdef ResultBundle* bundle
        for i in range(self._network_count):
            bundle = &self._bundles[i]
            for j in range(bundle.count):
                if bundle.slots[j] == slot and bundle.items[j].error_code == 0:
                    bundle.items[j].error_code = ERROR_KAFKA_STORAGE_ERROR
                    bundle.items[j].base_offset = -1


cdef int64_t wall_clock_ms() noexcept nogil:
    cdef timespec t
    clock_gettime(CLOCK_REALTIME, &t)
    return <int64_t>t.tv_sec * 1000 + t.tv_nsec // 1000000


cdef bint is_unreachable(int error_code) noexcept nogil:
    """Whether a coordinator could not be asked, or not yet."""
    return (
        error_code == ERROR_NETWORK_EXCEPTION
        or error_code == ERROR_REQUEST_TIMED_OUT
        or error_code == ERROR_COORDINATOR_LOAD_IN_PROGRESS
        or error_code == ERROR_COORDINATOR_NOT_AVAILABLE
        or error_code == ERROR_NOT_COORDINATOR
    )


cdef int16_t produce_error(int error_code, int16_t version) noexcept nogil:
    """What a producer of this Produce version is told when a coordinator refused (COMPAT: as Kafka 4 maps it)."""
    if error_code == ERROR_PRODUCER_FENCED:
        return ERROR_INVALID_PRODUCER_EPOCH
    if error_code == ERROR_CLUSTER_AUTHORIZATION_FAILED or (
        error_code == ERROR_TRANSACTION_ABORTABLE and version < FIRST_ABORTABLE
    ):
        return ERROR_INVALID_TXN_STATE
    if is_unreachable(error_code) or (error_code == ERROR_CONCURRENT_TRANSACTIONS and version < FIRST_ADDING):
        # Retriable, and older clients do not look for the partition's leader anew because of it.
        return ERROR_NOT_ENOUGH_REPLICAS
    return <int16_t>error_code


cdef inline bint is_zstd(const uint8_t* batch, Py_ssize_t size) noexcept nogil:
    return size >= BATCH_HEADER_BYTES and batch[BATCH_ATTRIBUTES_AT + 1] & ATTRIBUTE_CODEC_MASK == CODEC_ZSTD
