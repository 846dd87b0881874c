"""The produce of an io worker: each descriptor names a record batch in a network process's arena.

The LogAppender of the slot checks the batch in place and appends it; the result waits in ``TurnResults`` for the end of
the turn, or with acks=all until the batch is committed (``committed_queue``). Cost of a batch in the steady state: no
Python object, and one pwrite together with its neighbours for the same log.

``txn_verification`` holds transactional batches that must be verified first. After the start of this process, batches
for a log wait until that log is open (``EarlyBatches``). What is refused for a reason that passes is not overtaken by
later batches of its producer (``RefusedBatches``).
"""
from libc.stdint cimport int32_t, uint64_t
from libc.stdlib cimport calloc, free

from kbroker._ext.base.buffers cimport region_bytes
from kbroker._ext.base.crc32c cimport crc32c
from kbroker._ext.base.error_codes cimport (
    CONCURRENT_TRANSACTIONS,
    KAFKA_STORAGE_ERROR,
    MESSAGE_TOO_LARGE,
    NOT_ENOUGH_REPLICAS,
    NOT_LEADER_OR_FOLLOWER,
    RECORD_LIST_TOO_LARGE,
    REQUEST_TIMED_OUT,
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    UNKNOWN_SERVER_ERROR,
    UNKNOWN_TOPIC_OR_PARTITION,
    UNSUPPORTED_COMPRESSION_TYPE,
)
from kbroker._ext.base.socket_api cimport monotonic_ns, wall_clock_ms
from kbroker._ext.base.wire cimport load_i16, load_i32, load_i64, load_u32
from kbroker._ext.io.produce_results cimport add_indexes, add_text
from kbroker._ext.log.held_batches cimport Question
from kbroker._ext.log.log_append cimport RUN_MAX, is_plain
from kbroker._ext.log.log_transactions cimport NO_QUESTION, Verification
from kbroker._ext.log.producer_state cimport (
    SEQUENCE_DUPLICATE,
    SEQUENCE_OK,
    ProducerBatch,
    ProducerEntry,
    ProducerState,
)
from kbroker._ext.log.refused_batches cimport RefusedBatches
from kbroker._ext.log.txn_verification cimport HELD_BEHIND, NOT_HELD, produce_error
from kbroker._ext.record.record_batch cimport (
    ATTRIBUTE_CODEC_MASK,
    ATTRIBUTE_TRANSACTIONAL,
    BATCH_ATTRIBUTES_AT,
    BATCH_BASE_SEQUENCE_AT,
    BATCH_CRC_AT,
    BATCH_HEADER_BYTES,
    BATCH_LAST_OFFSET_DELTA_AT,
    BATCH_MAGIC_AT,
    BATCH_PRODUCER_EPOCH_AT,
    BATCH_PRODUCER_ID_AT,
    CODEC_ZSTD,
)
from kbroker._ext.record.record_set cimport whole_entries
from kbroker._ext.shared.descriptors cimport ProduceResult
from kbroker._ext.shared.log_figures cimport Written
from kbroker._ext.shared.partition_table cimport (
    ROLE_LEADER,
    SLOT_FREE,
    SLOT_OFFLINE,
    SLOT_ONLINE,
    SlotData,
)

from kbroker.errors import StorageError

cdef enum:
    FIRST_OF_BATCHES = 3     # Produce versions from here on carry only format 2
    FIRST_WITH_ZSTD = 7
    # What a producer has under way when it learns that a batch was refused arrives sooner than this.
    REFUSED_KEEP_MS = 30000


cdef class ProduceIntake:
    """Appends for the partitions of one io worker. Created by its ``IoLoop``.

    arenas: the request arena of each network process, by index.
    on_failure(slot): called when an append took the log directory of that slot offline.
    """

    def __cinit__(self, PartitionTable table, list arenas, TurnResults results, on_failure):
        cdef int i
        cdef Py_ssize_t size = 0
        self.table = table
        self.arenas = arenas
        self.results = results
        self.on_failure = on_failure
        self.verification = TxnVerification.__new__(TxnVerification)
        self.appenders = {}
        self.early = EarlyBatches.__new__(EarlyBatches, arenas)
        self.refused = RefusedBatches.__new__(RefusedBatches, REFUSED_KEEP_MS)
        self.bases = <uint8_t**>calloc(max(1, len(arenas)), sizeof(uint8_t*))
        self.sizes = <int64_t*>calloc(max(1, len(arenas)), sizeof(int64_t))
        if self.bases == NULL or self.sizes == NULL:
            raise MemoryError()
        for i in range(<int>len(arenas)):
            self.bases[i] = region_bytes(arenas[i], &size)
            self.sizes[i] = size

    def __dealloc__(self):
        free(self.bases)
        free(self.sizes)

    cdef uint32_t take_run(
        self, int network_index, const ProduceDescriptor* d, uint32_t count, int64_t now_ms
    ) except 0:
        cdef AppendResult results[RUN_MAX]
        cdef LogAppender appender
        cdef uint32_t i, run = 0
        if count > 1 and d[1].slot == d.slot:
            while (
                run < min(count, <uint32_t>RUN_MAX) and d[run].slot == d.slot and d[run].api_version >= FIRST_WITH_ZSTD
                and d[run].size >= BATCH_HEADER_BYTES and self.descriptor_error(network_index, &d[run]) == 0
                and is_plain(self.bases[network_index] + d[run].arena_offset)
            ):
                run += 1
        if run > 1:
            appender = <LogAppender>self.appenders[d.slot]
            try:
                run = appender.append_run(self.bases[network_index], d, run, now_ms, results)
            except StorageError:
                self.results.call_out(self.on_failure, (d.slot,))
                run = 0  # the log rejects all appends from now on
            for i in range(run):
                self.add_result(network_index, &d[i], &results[i], appender, None)
            if run > 0:
                return run
        self.take_one(network_index, d, now_ms)
        return 1

    cdef int take_one(self, int network_index, const ProduceDescriptor* d, int64_t now_ms) except -1:
        cdef int16_t error = self.descriptor_error(network_index, d)
        cdef ProduceDescriptor whole
        cdef Py_ssize_t taken
        cdef const uint8_t* batch
        if error == NOT_LEADER_OR_FOLLOWER and self.opening and self.early.keep(
            network_index, d, self.bases[network_index] + d.arena_offset
        ):
            return 0
        if error == 0:
            error = <int16_t>whole_entries(
                d.api_version, self.bases[network_index] + d.arena_offset, d.size, &taken)
            if error == 0:  # what follows the whole batch is not looked at
                whole = d[0]
                whole.size = <uint32_t>taken
                d = &whole
        if error == 0 and self.refused.count:
            error = self.missing_error(d, self.bases[network_index] + d.arena_offset)
            if error != 0:
                return self.append_one(network_index, d, now_ms, NO_QUESTION, error, "an earlier batch was rejected")
        if error == 0 and d.size >= BATCH_HEADER_BYTES:
            batch = self.bases[network_index] + d.arena_offset
            # The header of a damaged batch is meaningless; append_one rejects it as damaged.
            if (
                batch[BATCH_MAGIC_AT] >= 2
                and load_i16(batch + BATCH_ATTRIBUTES_AT) & ATTRIBUTE_TRANSACTIONAL
                and self.is_intact(d, batch)
            ):
                if d.transactional_id_size == 0:
                    error = TRANSACTIONAL_ID_AUTHORIZATION_FAILED
                elif self.hold(network_index, d, batch, now_ms, &error):
                    return 0
        return self.append_one(network_index, d, now_ms, NO_QUESTION, error, None)

    cdef int16_t missing_error(self, const ProduceDescriptor* d, const uint8_t* batch) except -1:
        """The log may have it nevertheless, if another broker led meanwhile: then the batch follows, or is known."""
        cdef ProducerState producers = (<LogAppender>self.appenders[d.slot]).transactions.producers
        cdef ProducerBatch found
        cdef int outcome
        cdef int16_t error = self.refused.error_of(d.slot, batch, d.size)
        if error == 0 or load_i64(batch + BATCH_PRODUCER_ID_AT) not in producers.entries:
            return error
        outcome = producers.check(
            load_i64(batch + BATCH_PRODUCER_ID_AT), load_i16(batch + BATCH_PRODUCER_EPOCH_AT),
            load_i32(batch + BATCH_BASE_SEQUENCE_AT), load_i32(batch + BATCH_LAST_OFFSET_DELTA_AT), &found)
        return 0 if outcome == SEQUENCE_OK or outcome == SEQUENCE_DUPLICATE else error

    cdef bint is_intact(self, const ProduceDescriptor* d, const uint8_t* batch) except *:
        """Whether the checksum is right. Not computed if the transaction is open, as then no verification is needed."""
        cdef LogAppender appender = <LogAppender>self.appenders[d.slot]
        cdef ProducerEntry entry = appender.transactions.producers.entries.get(load_i64(batch + BATCH_PRODUCER_ID_AT))
        if d.transactional_id_size and entry is not None and entry.current_txn_first_offset >= 0:
            return True
        return load_u32(batch + BATCH_CRC_AT) == crc32c(batch + BATCH_ATTRIBUTES_AT, d.size - BATCH_ATTRIBUTES_AT)

    cdef int append_one(
        self, int network_index, const ProduceDescriptor* d, int64_t now_ms, int64_t verification, int16_t error,
        object text
    ) except -1:
        cdef:
            AppendResult result
            LogAppender appender = None
            const uint8_t* batch = self.bases[network_index] + d.arena_offset
        result.error_code = error
        result.bad_record_index = -1
        result.base_offset = -1
        result.log_append_time_ms = -1
        result.log_start_offset = -1
        if error == 0 and FIRST_OF_BATCHES <= d.api_version < FIRST_WITH_ZSTD and is_zstd(batch, d.size):
            # COMPAT: consumers of that age do not support zstd either (KIP-110).
            result.error_code = UNSUPPORTED_COMPRESSION_TYPE
            text = "zstd needs version 7 or later of Produce"
        elif error == 0:
            appender = <LogAppender>self.appenders[d.slot]
            try:
                # COMPAT: an old version may carry a batch of format 2, which is then treated as one.
                if d.api_version < FIRST_OF_BATCHES and d.size > BATCH_MAGIC_AT and batch[BATCH_MAGIC_AT] < 2:
                    appender.append_message_set(batch, d.size, now_ms, &result)
                else:
                    appender.append(batch, d.size, now_ms, &result, verification)
            except StorageError:
                result.error_code = KAFKA_STORAGE_ERROR
                result.base_offset = -1
                self.results.call_out(self.on_failure, (d.slot,))
        return self.add_result(network_index, d, &result, appender, text)

    cdef int add_result(
        self, int network_index, const ProduceDescriptor* d, const AppendResult* result, LogAppender appender,
        object text
    ) except -1:
        cdef ProduceResult* out
        if result.error_code == 0 and d.acks == -1 and result.end_offset > appender.committed.offset:
            out = self.results.add_waiting(network_index, appender, result.end_offset)
        else:
            out = self.results.add(network_index, d.slot)
        out.request = d.request
        out.ordinal = d.ordinal
        out.error_code = result.error_code
        out.base_offset = result.base_offset
        out.log_append_time_ms = result.log_append_time_ms
        out.log_start_offset = result.log_start_offset
        out.bad_record_index = result.bad_record_index
        out.error_text_size = 0
        out.more_bad_records = 0
        out.taken_ns = self.results.taken_ns
        out.waits_ns = 0
        self.count(d, result, appender is not None)
        if result.error_code == 0:
            if appender.replicas is not None and d.acks == -1:
                out.waits_ns = monotonic_ns()
            self.batches_total += 1
            self.bytes_total += d.size
            if appender.dirty and not appender.touched:
                self.results.touch(appender)
            if self.refused.count:
                self.refused.forget(d.slot, self.bases[network_index] + d.arena_offset, d.size)
        else:
            self.failed_total += 1
            if passes(result.error_code):
                self.refused.note(d.slot, self.bases[network_index] + d.arena_offset, d.size, result.error_code)
            if appender is not None:
                text = appender.error_text
            if text is not None:
                add_text(&self.results.bundles[network_index], out, text)
            if appender is not None and appender.more_bad_records:
                add_indexes(&self.results.bundles[network_index], out, appender.more_bad_records)
        return 0

    cdef void count(self, const ProduceDescriptor* d, const AppendResult* result, bint is_here) noexcept:
        """is_here: the slot has the partition that the descriptor means."""
        cdef Written* row
        if result.error_code == 0:
            self.messages_total += result.end_offset - result.base_offset
        if self.figures is None or not is_here:
            return
        row = self.figures.written_of(d.slot, d.slot_incarnation)
        row.produces += 1
        if result.error_code == 0:
            row.messages_in += result.end_offset - result.base_offset
            row.bytes_in += d.size
        else:
            row.failed_produces += 1
            if result.error_code == MESSAGE_TOO_LARGE or result.error_code == RECORD_LIST_TOO_LARGE:
                row.bytes_rejected += d.size

    cdef int16_t descriptor_error(self, int network_index, const ProduceDescriptor* d) except -1:
        cdef SlotData slot
        cdef LogAppender appender
        if d.slot < 0 or d.slot >= self.table.capacity:
            return UNKNOWN_TOPIC_OR_PARTITION
        if d.arena_offset > <uint64_t>self.sizes[network_index] or (
            d.size > <uint64_t>self.sizes[network_index] - d.arena_offset
        ):
            raise ValueError(f"a batch of {d.size} bytes at {d.arena_offset} is outside the arena")
        if d.transactional_id_back > d.arena_offset or d.transactional_id_size > d.transactional_id_back:
            raise ValueError(f"no transactional id can be {d.transactional_id_back} bytes before {d.arena_offset}")
        if not self.table.read_slot(d.slot, &slot):
            return NOT_LEADER_OR_FOLLOWER
        if slot.slot_incarnation < d.slot_incarnation:
            return NOT_LEADER_OR_FOLLOWER  # the broker has just started, and the log is not open yet
        if slot.slot_incarnation > d.slot_incarnation or slot.state == SLOT_FREE:
            return UNKNOWN_TOPIC_OR_PARTITION  # its topic was deleted
        if slot.state == SLOT_OFFLINE:
            return KAFKA_STORAGE_ERROR
        appender = self.appenders.get(d.slot)
        if slot.state != SLOT_ONLINE or slot.role != ROLE_LEADER or appender is None:
            return NOT_LEADER_OR_FOLLOWER
        if d.acks == -1 and appender.committed.is_under_min_isr:
            return NOT_ENOUGH_REPLICAS
        return 0

    # ---- verification ------------------------------------------------------------------------------------------

    cdef bint hold(
        self, int network_index, const ProduceDescriptor* d, const uint8_t* batch, int64_t now_ms, int16_t* error
    ) except *:
        """Whether a transactional batch has to wait. If not, append it, or reject it if *error is set."""
        cdef LogAppender appender = <LogAppender>self.appenders[d.slot]
        cdef int64_t token = self.verification.hold(appender, network_index, d, batch, now_ms, error)
        if token > HELD_BEHIND:
            self.ask(token)
        return token != NOT_HELD

    cdef int ask(self, int64_t token) except -1:
        if not self.results.call_out(self.verification.ask, (token,)):
            self.verified(token, UNKNOWN_SERVER_ERROR)
        return 0

    cdef int ask_again(self, int64_t now) except -1:
        for token, is_awaited in self.verification.due(now):
            if is_awaited:
                self.ask(token)
            else:
                self.verified(token, REQUEST_TIMED_OUT)
        return 0

    cdef int verified(self, int64_t token, int error_code) except -1:
        cdef:
            Question question = self.verification.settle(token, error_code)
            HeldBatch held
            int64_t now_ms
            int16_t error
            object text
            bint waits = False
        if question is None:
            return 0
        now_ms = wall_clock_ms()
        for held in question.batches:
            if held.producer_epoch != question.producer_epoch:
                self.take_one(held.network_index, &held.descriptor, now_ms)
                continue
            text = None
            error = self.descriptor_error(held.network_index, &held.descriptor)
            if error == 0 and not error_code and (waits or self.is_void(held)):
                # COMPAT: the marker may be that of the previous transaction, if the producer started this one while
                # that was still ending. So it must be verified again, and all later batches wait, too.
                waits = True
                self.take_one(held.network_index, &held.descriptor, now_ms)
                continue
            if error == 0 and error_code:
                error = produce_error(error_code, held.descriptor.api_version)
                text = f"cannot verify that the partition is part of the transaction (error {error_code})"
            self.append_one(held.network_index, &held.descriptor, now_ms, held.verification, error, text)
        return 0

    cdef bint is_void(self, HeldBatch held) except *:
        """Whether a marker has been written since the verification was requested."""
        cdef LogAppender appender = <LogAppender>self.appenders[held.descriptor.slot]
        cdef const uint8_t* batch = self.bases[held.network_index] + held.descriptor.arena_offset
        cdef Verification asked = appender.transactions.verifications.get(load_i64(batch + BATCH_PRODUCER_ID_AT))
        return held.verification > 0 and (asked is None or asked.number != held.verification)

    # ---- batches that have waited --------------------------------------------------------------------------------

    cdef int admit(self, int32_t slot) except -1:
        cdef HeldBatch held
        cdef int64_t now_ms = wall_clock_ms()
        for held in self.early.take(slot):
            self.take_one(held.network_index, &held.descriptor, now_ms)
        return 0

    cdef int expire(self, int64_t now) except -1:
        cdef HeldBatch held
        if self.early.count:
            for held in self.early.expired(now):
                self.append_one(
                    held.network_index, &held.descriptor, 0, NO_QUESTION, REQUEST_TIMED_OUT,
                    "the log was not opened in time")
        if self.verification.held_count:
            for held in self.verification.expired(now):
                self.append_one(
                    held.network_index, &held.descriptor, 0, NO_QUESTION, NOT_ENOUGH_REPLICAS,
                    "the transaction coordinator did not respond in time")
        return 0

    cdef int drop(self, int network_index) except -1:
        if self.verification.held_count:
            self.verification.drop(network_index)
        if self.early.count:
            self.early.drop(network_index)
        return 0


cdef inline bint passes(int16_t error_code) noexcept nogil:
    """Whether the producer sends the batch again as it is."""
    return (
        error_code == NOT_LEADER_OR_FOLLOWER
        or error_code == NOT_ENOUGH_REPLICAS
        or error_code == KAFKA_STORAGE_ERROR
        or error_code == UNKNOWN_TOPIC_OR_PARTITION
        or error_code == REQUEST_TIMED_OUT
        or error_code == CONCURRENT_TRANSACTIONS
    )


cdef inline bint is_zstd(const uint8_t* batch, Py_ssize_t size) noexcept nogil:
    return size >= BATCH_HEADER_BYTES and batch[BATCH_ATTRIBUTES_AT + 1] & ATTRIBUTE_CODEC_MASK == CODEC_ZSTD
