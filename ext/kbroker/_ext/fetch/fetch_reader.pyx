"""Finds what a fetch returns for each partition: its offsets, its error, and the bytes within the limits.

One slot read per partition; a system call only where there are bytes to find. The results are kept in an array that
is reused for the next request.
"""

from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free

from kbroker._ext.base.api_keys cimport API_FETCH
from kbroker._ext.base.atomics cimport kb_load_relaxed_i64
from kbroker._ext.base.error_codes cimport (
    CORRUPT_MESSAGE,
    FENCED_LEADER_EPOCH,
    KAFKA_STORAGE_ERROR,
    NOT_LEADER_OR_FOLLOWER,
    OFFSET_OUT_OF_RANGE,
    UNKNOWN_LEADER_EPOCH,
    UNKNOWN_TOPIC_OR_PARTITION,
    UNSUPPORTED_COMPRESSION_TYPE,
    UNSUPPORTED_VERSION,
)
from kbroker._ext.base.growing cimport grow
from kbroker._ext.fetch.fetch_aborted cimport find_aborted
from kbroker._ext.fetch.fetch_segments cimport LogFiles
from kbroker._ext.fetch.segment_search cimport (
    FIND_CORRUPT,
    FIND_IO_ERROR,
    FIND_MISSING,
    FIND_NO_PLACE,
    FIND_OK,
    FindStatus,
)
from kbroker._ext.fetch.fetch_purgatory cimport (
    ANY_REPLICA,
    FETCH_INCREMENTAL,
    FETCH_LOG_END,
    FETCH_TXN_COMMITTED,
)
from kbroker._ext.fetch.topic_registry cimport Topic
from kbroker._ext.shared.log_figures cimport Read
from kbroker._ext.shared.partition_table cimport (
    ROLE_FOLLOWER,
    ROLE_LEADER,
    SLOT_FREE,
    SLOT_OFFLINE,
    SLOT_ONLINE,
    SLOT_SWAPPING,
    SlotFollowers,
    WAIT_WRITTEN,
)
from kbroker._ext.shared.request_times cimport ROW_FOLLOWER

from kbroker._ext.fetch.fetch_segments import report_failed_read

cdef enum:
    NONE = -1
    # BOUND: one response has records from this fraction (one over it) of the files that may be open, and the next one
    # the rest: a consumer that reads slowly would keep all files from followers, and be disconnected for it.
    RESPONSE_FILES_SHARE = 4
    DAMAGES_MAX = 100              # BOUND: damage to be reported; a reader that meets it retries
    FIRST_OF_WHOLE_BATCHES = 3     # before it every partition gets its bytes, and the last message may be cut
    FIRST_OF_FORMAT_2 = 4
    FIRST_OF_ZSTD = 10
    FIRST_FROM_FOLLOWERS = 11      # KIP-392
    EPOCH_ENDS_MAX = 10000         # BOUND: answers of owners that are kept; when it is reached, all are forgotten

cdef dict NOWHERE = {}


cdef inline bint reads_followers(const FetchTerms* terms) noexcept:
    # Consumers that know of it, with and without a rack; kafka.tools.ReplicaVerificationTool compares replicas so.
    return terms.replica_id == ANY_REPLICA or (terms.replica_id < 0 and terms.version >= FIRST_FROM_FOLLOWERS)


cdef int16_t epoch_error(int32_t asked, int32_t current) noexcept:
    # KIP-320: -1 asks for no check.
    if asked < 0 or asked == current:
        return 0
    return FENCED_LEADER_EPOCH if asked < current else UNKNOWN_LEADER_EPOCH


cdef int16_t slot_error(const SlotData* slot, const FetchPartition* entry, const FetchTerms* terms) noexcept:
    # Error of a partition that is not online or not served here, or is in another leader epoch than the client knows. Loading,
    # closed and not led are retriable: the client looks for a leader. COMPAT: the epoch counts first, the role then.
    cdef int16_t error
    if slot.state == SLOT_ONLINE:
        if slot.role != ROLE_LEADER and slot.role != ROLE_FOLLOWER:
            return NOT_LEADER_OR_FOLLOWER
        error = epoch_error(entry.current_leader_epoch, slot.leader_epoch)
        if error == 0 and slot.role == ROLE_FOLLOWER and not reads_followers(terms):
            return NOT_LEADER_OR_FOLLOWER
        return error
    if slot.state == SLOT_OFFLINE:
        return KAFKA_STORAGE_ERROR
    return UNKNOWN_TOPIC_OR_PARTITION if slot.state == SLOT_FREE else NOT_LEADER_OR_FOLLOWER


cdef bint is_anothers(const SlotData* slot, const FetchPartition* entry) noexcept:
    # The slot belongs to another replica: the topics of this process are older than the table. Or, in a broker that has just
    # been started, this replica has not got its slot yet.
    return entry.slot_incarnation >= 0 and entry.slot_incarnation != <int64_t>slot.slot_incarnation


cdef class PartitionReader:
    """Reads the partitions of a session. One per FetchEngine; ``results`` are those of the last evaluate()."""

    def __cinit__(self, PartitionTable table not None, TopicRegistry registry not None, FileCache files not None,
                  list log_dirs not None):
        self.table = table
        self.registry = registry
        self.files = files
        self.log_dirs = list(log_dirs)
        self.aborted = AbortedList.__new__(AbortedList)
        self.damages = []
        self.epoch_ends = {}
        self.epoch_questions = []
        self.epochs_asked = set()

    def __dealloc__(self):
        free(self.results)

    cdef bint must_respond(self, const SlotData* slot, const FetchPartition* entry, const FetchTerms* terms) noexcept:
        """Whether a partition has an error to report, or tells a follower's session that records were deleted, for which a
        DeleteRecords may wait.
        """
        return (
            slot_error(slot, entry, terms) != 0
            or is_anothers(slot, entry)
            or entry.fetch_offset < slot.log_start_offset
            or entry.fetch_offset > slot.log_end.offset
            or (
                terms.kind == FETCH_INCREMENTAL
                and terms.replica_id >= 0
                and entry.told_log_start_offset >= 0
                and entry.told_log_start_offset < slot.log_start_offset
            )
        )

    cdef bint is_throttled(self, const FetchPartition* entry, const FetchTerms* terms) except -1:
        cdef dict throttled = (<Topic>entry.topic).throttled
        if self.quota is None or terms.replica_id < 0 or throttled is None:
            return False
        in_sync = throttled.get(entry.index)
        return in_sync is not None and terms.replica_id not in in_sync and self.quota.exceeded(self.files.now_ms)

    cdef int count_throttled(self, FetchSession session) except -1:
        """Charge the quota with the bytes of throttled partitions among the results, whoever gets them."""
        cdef int64_t total = 0
        cdef FetchPartition* entry
        cdef int32_t number
        if self.quota is None:
            return 0
        for number in range(self.result_count):
            entry = &session.partitions[self.results[number].entry]
            if (<Topic>entry.topic).throttled is not None and entry.index in (<Topic>entry.topic).throttled:
                total += self.results[number].response.size
        if total > 0:
            self.quota.record(total, self.files.now_ms)
        return 0

    cdef int make_results(self, int32_t count) except -1:
        self.result_count = 0
        self.result_capacity = grow(&self.results, self.result_capacity, count, sizeof(PartitionResult))
        return 0

    cdef int64_t evaluate(self, FetchSession session, FetchTerms* terms, bint* failed) except -1:
        """Fill ``results`` in order of service. Returns the bytes found; ``*failed`` when any partition has an error, or
        diverges.

        The results own a file reference each; the caller encodes or drops them.
        """
        cdef:
            PartitionResponse* response
            FetchPartition* entry
            int64_t left = terms.bytes_max
            int64_t total = 0
            int32_t number, undecided
            int32_t files_left = max(self.files.capacity // RESPONSE_FILES_SHARE, 2)
            uint64_t denied = self.files.denied_total
        self.aborted.count = 0
        self.undecided = 0
        self.has_lost_leaders = False
        session.resolve(self.registry)
        self.make_results(session.count)
        number = session.first
        while number != NONE:
            entry = &session.partitions[number]
            self.results[self.result_count].entry = number
            response = &self.results[self.result_count].response
            clear_response(response)
            response.index = entry.index
            self.results[self.result_count].aborted_start = self.aborted.count
            undecided = self.undecided
            response.error = self.read_partition(
                entry, terms, min(<int64_t>entry.bytes_max, left),
                total == 0 or terms.version < FIRST_OF_WHOLE_BATCHES, response
            )
            if terms.version < FIRST_OF_FORMAT_2 and response.error == 0 and (<Topic>entry.topic).rejects_old:
                response.size = 0
                response.error = UNSUPPORTED_VERSION
            elif terms.version < FIRST_OF_ZSTD and response.error == 0 and (<Topic>entry.topic).stores_zstd:
                response.size = 0
                response.error = UNSUPPORTED_COMPRESSION_TYPE
            self.reads += 1
            self.failed_reads += response.error != 0
            if self.figures is not None and entry.slot >= 0:
                self.count_read(entry, response.error != 0)
            if response.error != 0:
                clear_offsets(response)
                failed[0] |= self.undecided == undecided
                self.has_lost_leaders |= (
                    response.error == NOT_LEADER_OR_FOLLOWER or response.error == FENCED_LEADER_EPOCH
                )
            elif response.diverging_epoch >= 0:
                failed[0] = True
            elif session.reports is not None:
                session.report(entry, &self.slot)
            if response.error == 0 and response.size > 0:
                self.files.hold(response.file)
                total += response.size
                files_left -= 1
                left = max(left - response.size, <int64_t>0) if files_left > 0 else 0
            if response.error == 0 and terms.isolation == FETCH_TXN_COMMITTED and response.preferred_replica < 0:
                response.aborted_count = self.aborted.count - self.results[self.result_count].aborted_start
            self.result_count += 1
            number = entry.next
        if total == 0 and self.files.denied_total != denied:
            self.starved_total += 1
        if self.aborted.count > 0:  # the list may have moved while it grew
            for number in range(self.result_count):
                self.results[number].response.aborted = self.aborted.items + self.results[number].aborted_start
        return total

    cdef int count_read(self, const FetchPartition* entry, bint failed) except -1:
        cdef Read* row
        row = self.figures.read_of(
            entry.slot, <uint32_t>entry.slot_incarnation if entry.slot_incarnation >= 0 else self.slot.slot_incarnation)
        row.fetches += 1
        row.failed_fetches += failed
        return 0

    cdef int count_sent(self, FetchSession session, const FetchTerms* terms) except -1:
        cdef int row = ROW_FOLLOWER if terms.replica_id >= 0 else API_FETCH
        cdef PartitionResponse* response
        cdef int32_t number, slot
        for number in range(self.result_count):
            response = &self.results[number].response
            self.times.count_error(row, response.error)
            slot = session.partitions[self.results[number].entry].slot
            if response.size > 0 and slot >= 0:
                # The row has this incarnation since it was read.
                if terms.replica_id >= 0:
                    self.figures.read[slot].bytes_to_followers += response.size
                else:
                    self.figures.read[slot].bytes_out += response.size
                    self.bytes_out += response.size
        return 0

    cdef int64_t evaluate_in_rack(self, FetchSession session, FetchTerms* terms, bytes rack, bint* failed) except -1:
        cdef uint64_t redirected = self.redirected_total
        self.rack = rack
        try:
            return self.evaluate(session, terms, failed)
        finally:
            self.rack = None
            failed[0] |= self.redirected_total != redirected

    cdef bint redirect(self, FetchPartition* entry, const FetchTerms* terms, PartitionResponse* response) except *:
        """Send the consumer to a replica in its rack that has the offset, if there is one (KIP-392).

        In-sync replicas have everything up to the high watermark.
        """
        cdef SlotData* slot = &self.slot
        cdef SlotFollowers* followers = &self.table.slots[entry.slot].followers
        cdef dict nearby = (<Topic>entry.topic).nearby
        if slot.role != ROLE_LEADER or nearby is None:
            return False
        replicas = nearby.get(self.rack, NOWHERE).get(entry.index)
        if (
            replicas is None
            or entry.fetch_offset > slot.high_watermark.offset
            or entry.fetch_offset < kb_load_relaxed_i64(&followers.log_start_max)
        ):
            return False
        response.preferred_replica = self.select(
            replicas, terms.listener, kb_load_relaxed_i64(&followers.most_caught_up))
        if response.preferred_replica < 0:
            return False
        response.high_watermark = slot.high_watermark.offset
        response.last_stable_offset = slot.last_stable.offset
        response.log_start_offset = slot.log_start_offset
        entry.segment_base_offset = NONE
        entry.told_high_watermark = NONE  # an incremental response must contain it
        self.redirected_total += 1
        return True

    cdef int16_t read_partition(
        self, FetchPartition* entry, const FetchTerms* terms, int64_t bytes_max, bint at_least_one, PartitionResponse* response,
    ) except *:
        """One partition: its offsets and, within the limits, its bytes. Returns the error code."""
        cdef:
            SlotData* slot = &self.slot
            LogEnd* end
            FoundRange found
            int16_t error
        if entry.slot < 0:
            return entry.error
        if not self.table.read_slot(entry.slot, slot):
            return NOT_LEADER_OR_FOLLOWER  # its owner died during a write; the next incarnation repairs the slot
        error = NOT_LEADER_OR_FOLLOWER if is_anothers(slot, entry) else slot_error(slot, entry, terms)
        if error != 0:
            return error
        if entry.fetch_offset < slot.log_start_offset:
            return OFFSET_OUT_OF_RANGE
        if self.rack is not None and self.redirect(entry, terms, response):
            return 0
        if entry.last_fetched_epoch >= 0:
            error = self.compare_epochs(entry, response)
            if error != 0:
                return error
        if entry.fetch_offset > slot.log_end.offset and response.diverging_epoch < 0:
            return OFFSET_OUT_OF_RANGE
        end = end_for(slot, terms.isolation)
        response.high_watermark = slot.high_watermark.offset
        response.last_stable_offset = slot.last_stable.offset
        response.log_start_offset = slot.log_start_offset
        if response.diverging_epoch >= 0:
            entry.segment_base_offset = NONE
            return 0
        if entry.fetch_offset >= end.offset:
            entry.segment_base_offset = end.segment_base_offset if entry.fetch_offset == end.offset else NONE
            entry.position = end.position
            return 0
        entry.segment_base_offset = NONE
        if bytes_max == 0 and not at_least_one:
            return 0  # the limits are used up
        if self.is_throttled(entry, terms):
            return 0
        error = self.find_bytes(entry, terms, slot, end, bytes_max, at_least_one, &found)
        if (
            error == 0
            and found.size > 0
            and terms.isolation == FETCH_TXN_COMMITTED
            and slot.aborted_version != 0
        ):
            error = self.add_aborted(entry, slot, end, &found)
        if error == 0:
            response.file = found.file
            response.position = found.position
            response.size = found.size
        return error

    cdef int16_t compare_epochs(self, FetchPartition* entry, PartitionResponse* response) except *:
        """Check whether the log of a follower, or what a consumer has read, ends with records that this log lacks (KIP-595).

        (a) The last epoch is one that this log does not know, as it is larger: OFFSET_OUT_OF_RANGE. (b) It ends before the
        follower's log does, or this log does not have it: the logs diverge. (c) It is older than the two that the slot has:
        the owner is asked, and until it answers the partition gets NOT_LEADER_OR_FOLLOWER, after which followers come again.
        """
        cdef:
            SlotData* slot = &self.slot
            int32_t asked = entry.last_fetched_epoch
            int32_t epoch
            int64_t end
        if asked > slot.latest_epoch:
            return OFFSET_OUT_OF_RANGE
        if asked == slot.latest_epoch:
            epoch = asked
            end = slot.log_end.offset
        elif slot.previous_epoch < 0:
            epoch = asked  # older than all: they end where the oldest begins
            end = slot.latest_epoch_start
        elif asked >= slot.previous_epoch:
            epoch = slot.previous_epoch
            end = slot.latest_epoch_start
        else:
            found = self.epoch_end(entry)
            if found is None:
                self.undecided += 1
                return NOT_LEADER_OR_FOLLOWER
            epoch, end = found
            if epoch < 0 or end < 0:
                return OFFSET_OUT_OF_RANGE
        if epoch < asked or end < entry.fetch_offset:
            response.diverging_epoch = epoch
            response.diverging_end = end
        return 0

    cdef tuple epoch_end(self, FetchPartition* entry):
        """The owner's result for the follower's last epoch; None, and the owner must be asked, if there is none."""
        cdef object key = (entry.slot, self.slot.slot_incarnation, self.slot.leader_epoch, entry.last_fetched_epoch)
        cdef object found = self.epoch_ends.get(key)
        if found is None and key not in self.epochs_asked:
            self.epochs_asked.add(key)
            self.epoch_questions.append(key)
        return found

    cdef list take_epoch_questions(self):
        asked = self.epoch_questions
        self.epoch_questions = []
        return asked

    cdef int put_epoch_ends(self, list responses) except -1:
        for question, end in responses:
            self.epochs_asked.discard(question)
            if end is not None:
                if len(self.epoch_ends) >= EPOCH_ENDS_MAX:
                    self.epoch_ends.clear()
                self.epoch_ends[question] = end
        return 0

    cdef int settle(self, FetchSession session, const FetchTerms* terms, int network_index) except -1:
        """Mark a follower's partitions as standing if they are at the log end without changes: see standing_waits.

        Where the high watermark is not at the log end, it is about to move, and no wake-up would say so.
        """
        cdef:
            int32_t number = session.first
            int32_t following
            FetchPartition* entry
            SlotData slot
        while number != NONE:
            entry = &session.partitions[number]
            following = entry.next
            if (
                entry.slot >= 0
                and entry.segment_base_offset >= 0
                and entry.reported_epoch >= 0
                and entry.told_high_watermark == entry.fetch_offset
            ):
                self.table.add_waiter(entry.slot, network_index, WAIT_WRITTEN)
                if (
                    self.table.read_slot(entry.slot, &slot)
                    and slot.log_end.offset == entry.fetch_offset
                    and slot.high_watermark.offset == entry.fetch_offset
                    and slot.log_start_offset == entry.told_log_start_offset
                    and slot.leader_epoch == entry.reported_epoch
                    and not self.must_respond(&slot, entry, terms)
                ):
                    session.stand(number)
            number = following
        return 0

    cdef int16_t find_bytes(
        self, FetchPartition* entry, const FetchTerms* terms, SlotData* slot, LogEnd* end, int64_t bytes_max,
        bint at_least_one, FoundRange* found,
    ) except *:
        cdef Topic topic = <Topic>entry.topic
        cdef LogFiles log = topic.log_of(entry.index, slot.log_dir_index, self.log_dirs, self.files)
        cdef FindStatus status
        cdef SlotData now
        if log is None:
            return KAFKA_STORAGE_ERROR
        found.size = 0
        if slot.flags & SLOT_SWAPPING:
            return 0  # takes only a moment; the owner wakes waiters
        status = log.find_range(entry.fetch_offset, slot, end, bytes_max, at_least_one, found)
        if status == FIND_OK:
            if found.size > 0 and self.table.read_slot(entry.slot, &now) and now.segment_version != slot.segment_version:
                # Segments were added, deleted or replaced meanwhile, maybe between two looks at the directory.
                found.size = 0
                return 0
            entry.segment_base_offset = found.segment_base_offset
            entry.position = found.position
            return 0
        found.size = 0
        if status == FIND_NO_PLACE:
            return 0
        if status == FIND_CORRUPT:
            if not self.table.read_slot(entry.slot, &now) or now.segment_version != slot.segment_version:
                return 0  # segments were replaced during the look-up
            if len(self.damages) < DAMAGES_MAX:
                self.damages.append((entry.slot, now.slot_incarnation, *log.damage))
            return CORRUPT_MESSAGE
        if status == FIND_MISSING:
            # Retention, a deletion or a restart of the owner may have been faster than this reader.
            if not self.table.read_slot(entry.slot, &now):
                return NOT_LEADER_OR_FOLLOWER
            if slot_error(&now, entry, terms) != 0:
                return slot_error(&now, entry, terms)
            if now.slot_incarnation != slot.slot_incarnation:
                return NOT_LEADER_OR_FOLLOWER
            if entry.fetch_offset < now.log_start_offset:
                return OFFSET_OUT_OF_RANGE
            if now.log_dir_index != slot.log_dir_index:
                return 0  # moved to another directory after the slot was read
        elif status == FIND_IO_ERROR:
            log.report_failure()
        return KAFKA_STORAGE_ERROR

    cdef int16_t add_aborted(
        self, FetchPartition* entry, const SlotData* slot, const LogEnd* end, FoundRange* found
    ) except *:
        """Add the aborted transactions among the records of *found. Without them the records are not sent."""
        cdef:
            Topic topic = <Topic>entry.topic
            LogFiles log = topic.log_of(entry.index, slot.log_dir_index, self.log_dirs, self.files)
            int32_t start = self.aborted.count
            bint was_read = False
            SlotData now
            FindStatus status
        self.files.hold(found.file)  # opening an index must not close it
        try:
            status = find_aborted(log, entry.fetch_offset, slot, end, found, self.aborted, &was_read)
        finally:
            self.files.drop(found.file)
        if status == FIND_OK and not was_read:
            return 0
        if status == FIND_OK or status == FIND_MISSING or status == FIND_NO_PLACE:
            if status == FIND_OK and self.table.read_slot(entry.slot, &now) and (
                now.segment_version == slot.segment_version and now.slot_incarnation == slot.slot_incarnation
            ):
                return 0
            # Segments were added or deleted while the indexes were read: no records this time, the client retries.
            self.aborted.count = start
            found.size = 0
            return 0
        self.aborted.count = start
        found.size = 0
        report_failed_read(
            f"{log.directory}/{found.segment_base_offset:020d}.txnindex", "it, or the one of a later segment, is damaged"
        )
        return KAFKA_STORAGE_ERROR

    cdef int drop_results(self) except -1:
        cdef int32_t number
        for number in range(self.result_count):
            if self.results[number].response.size > 0 and self.results[number].response.file >= 0:
                self.files.drop(self.results[number].response.file)
        self.result_count = 0
        return 0
