"""Fetches of a follower over one link: builds requests, and appends the records of responses.

Runs in the io worker that owns the logs. One request is under way at a time; it names the partitions whose offset has
changed, as long as the leader keeps a fetch session. The response is read as a stream: batches are appended as soon as they are
here as a whole, straight from the receive buffer. Nothing here is per record, and nothing per partition but for those that a
response names. What happens once in a while (errors, batches that are not appended) is told in ``take_events``.

Nothing of a response is trusted: an answer for a partition that was not asked for, or asked from another offset, is passed
over; what contradicts itself ends the connection (ValueError).
"""
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize

from kbroker._ext.base.api_keys cimport API_FETCH, FETCH_FLEXIBLE
from kbroker._ext.base.wire cimport (
    READ_BAD_LENGTH,
    READ_OK,
    READ_TRUNCATED,
    Reader,
    ReadStatus,
    Writer,
    make_reader,
    make_writer,
    read_array_count,
    read_compact_array_count,
    read_compact_string,
    read_i16,
    read_i32,
    read_i64,
    read_string,
    read_uvarint,
    skip,
    skip_tagged_fields,
    write_array_count,
    write_compact_array_count,
    write_compact_string,
    write_i8,
    write_i32,
    write_i64,
    write_no_tagged_fields,
    write_string,
)
from kbroker._ext.io.fetched_log cimport FetchedLog
from kbroker._ext.log.replica_append cimport (
    FETCHED_ALL,
    FETCHED_BAD_LENGTH,
    FETCHED_OFFSET_BACK,
    Fetched,
    append_fetched,
)
from kbroker._ext.sockets.peer_link cimport PeerLink
from kbroker._ext.sockets.stream cimport available, consume, response_data

from kbroker.errors import StorageError

cdef enum:
    # BOUND: a part of a response that is not records: names, numbers. A partition has about 60 bytes of it.
    ELEMENT_MAX = 256 << 10
    PARTITION_BYTES = 48        # of a partition in a request, at most
    TOPIC_BYTES = 16            # of a topic, beside its name
    REQUEST_BYTES = 64          # of the rest
    SESSION_EPOCH_MAX = 0x7FFFFFFF
    FIRST_WITH_EPOCH = 9
    FIRST_WITH_RACK = 11
    FIRST_WITH_LAST_EPOCH = 12
    FIRST_WITH_REPLICA = 11     # that a consumer is sent to

cdef enum Stage:
    HEAD
    TOPIC
    PARTITION
    RECORDS
    PARTITION_END
    TOPIC_END
    FRAME_END

# The value of an event: a Kafka error code; a tuple of replica_append, for a batch that was not appended; the leader's
# high watermark, whose position must be looked up; its log start offset; an exception of the disk or the log.
ERROR, FAULT, HIGH_WATERMARK, LOG_START, STORAGE = range(5)


cdef class ReplicaFetch:
    """The partitions that are fetched over ``link``. version: of Fetch. replica_id: this broker."""

    cdef PeerLink link
    cdef int16_t version
    cdef int32_t replica_id
    cdef readonly int count             # of partitions
    cdef dict topics                    # bytes -> dict of partition -> FetchedLog
    cdef list changed                   # to be named in the next request
    cdef dict lagging                   # FetchedLog: those that lack something that their leader calls committed
    cdef dict forgotten                 # (topic, partition): to be taken out of the session
    cdef int32_t session_id
    cdef int32_t session_epoch          # of the next request; 0: it names every partition
    cdef list events
    cdef list touched                   # appenders with something to publish
    cdef readonly int64_t bytes_total   # of batches that were appended
    cdef readonly int64_t throttled_bytes  # of those, the ones of throttled partitions
    cdef readonly bint is_empty         # the last response had no partition, which says that nothing is new
    # The response that is being read.
    cdef Stage stage
    cdef int32_t topics_left
    cdef int32_t partitions_left
    cdef int64_t records_left
    cdef int16_t error_code             # of the whole response
    cdef int32_t told_session
    cdef dict topic
    cdef FetchedLog log                 # None: its records are passed over
    cdef int64_t told_high_watermark
    cdef int64_t told_start
    cdef bint had_records               # some partition before this one had
    cdef bint has_appended              # of this partition
    cdef bint is_cut_short              # what is left of its records is no whole batch

    # Limits, as the settings are.
    cdef public int32_t wait_max_ms
    cdef public int32_t bytes_min
    cdef public int32_t bytes_max
    cdef public int32_t partition_bytes_max

    def __cinit__(self, int16_t version, int32_t replica_id):
        self.version = version
        self.replica_id = replica_id
        self.topics = {}
        self.changed = []
        self.lagging = {}
        self.forgotten = {}
        self.events = []
        self.touched = []

    def use(self, PeerLink link) -> None:
        """Connected: the next request names every partition. None: disconnected."""
        self.link = link
        self.stage = HEAD
        self.log = None
        self.session_epoch = 0

    # ---- partitions ----------------------------------------------------------------------------------------------

    def add(self, FetchedLog log not None) -> None:
        """Fetch the partition from its log end offset, with the next request."""
        cdef dict partitions = self.topics.setdefault(log.topic, {})
        cdef FetchedLog before = partitions.get(log.partition)
        if before is not None:
            self.remove(before)
            partitions = self.topics.setdefault(log.topic, {})
        partitions[log.partition] = log
        self.count += 1
        log.wanted = True
        log.in_session = False
        self.forgotten.pop((log.topic, log.partition), None)
        self.queue(log)

    def remove(self, FetchedLog log not None) -> None:
        """Fetch it no longer: nothing that is still on its way is appended."""
        cdef dict partitions
        if not log.wanted:
            return
        log.wanted = False
        self.note_lag(log, False)
        log.show_lag(-1)
        partitions = self.topics[log.topic]
        del partitions[log.partition]
        self.count -= 1
        if not partitions:
            del self.topics[log.topic]
        if log.in_session:
            self.forgotten[(log.topic, log.partition)] = None
        if self.log is log:
            self.log = None

    def queue(self, FetchedLog log not None) -> None:
        """Name the partition in the next request: its log does not start or end where the leader thinks."""
        if log.wanted and not log.queued:
            log.queued = True
            self.changed.append(log)

    def lag_max(self) -> int:
        """The most records that a partition lacks of those that its leader calls committed."""
        cdef FetchedLog log
        cdef int64_t lag = 0
        for log in self.lagging:
            lag = max(lag, log.told_high_watermark - log.appender.next_offset)
        return lag

    @property
    def lagging_count(self) -> int:
        return len(self.lagging)

    cdef int note_lag(self, FetchedLog log, bint lags) except -1:
        if lags and not log.lags:
            self.lagging[log] = None
        elif log.lags and not lags:
            del self.lagging[log]
        log.lags = lags
        return 0

    def take_events(self) -> list:
        """(FetchedLog or None, kind, value) of the events since the last call; None: the event concerns all
        partitions.
        """
        events = self.events
        self.events = []
        return events

    def take_touched(self) -> list:
        """Appenders with something to publish. Each may be there more than once."""
        touched = self.touched
        self.touched = []
        return touched

    # ---- the request ---------------------------------------------------------------------------------------------

    def send(self) -> None:
        """Send the next request. Raises OSError."""
        cdef bint full = self.session_epoch == 0
        cdef list rows = self.all_logs() if full else self.rows_of_changed()
        cdef FetchedLog log
        cdef Py_ssize_t size = REQUEST_BYTES
        cdef Writer w
        cdef list forgotten = [] if full else list(self.forgotten)
        for log in rows:
            size += PARTITION_BYTES + TOPIC_BYTES + len(log.topic)
        for topic, _ in forgotten:
            size += TOPIC_BYTES + len(topic)
        w = make_writer(self.link.begin_request(API_FETCH, self.version, self.is_flexible, size), size)
        self.put_request(&w, rows, forgotten)
        self.forgotten = {}
        self.stage = HEAD
        self.link.end_request(w.pos)

    @property
    def is_flexible(self) -> bool:
        return self.version >= FETCH_FLEXIBLE

    cdef list all_logs(self):
        cdef FetchedLog log
        cdef list found = []
        for log in self.changed:
            log.queued = False
        self.changed = []
        for partitions in self.topics.values():
            found.extend(partitions.values())
        return found

    cdef list rows_of_changed(self):
        cdef FetchedLog log
        cdef list found = []
        for log in self.changed:
            log.queued = False
            if log.wanted:
                found.append(log)
        self.changed = []
        return found

    cdef int put_request(self, Writer* w, list rows, list forgotten) except -1:
        cdef int at = 0, after
        cdef FetchedLog log
        write_i32(w, self.replica_id)
        write_i32(w, self.wait_max_ms)
        write_i32(w, self.bytes_min)
        write_i32(w, self.bytes_max)
        write_i8(w, 0)  # isolation level: a follower reads to the log end
        write_i32(w, self.session_id)
        write_i32(w, self.session_epoch)
        self.put_count(w, topic_runs(rows))
        while at < len(rows):
            log = rows[at]
            after = at + 1
            while after < len(rows) and (<FetchedLog>rows[after]).topic == log.topic:
                after += 1
            self.put_topic(w, log.topic)
            self.put_count(w, after - at)
            for log in rows[at:after]:
                self.put_partition(w, log)
            self.end_struct(w)
            at = after
        self.put_count(w, <int>len(forgotten))
        for topic, partition in forgotten:
            self.put_topic(w, topic)
            self.put_count(w, 1)
            write_i32(w, partition)
            self.end_struct(w)
        if self.version >= FIRST_WITH_RACK:
            self.put_topic(w, b"")  # no rack
        self.end_struct(w)
        return 0

    cdef int put_partition(self, Writer* w, FetchedLog log) except -1:
        log.in_session = True
        log.sent_offset = log.appender.next_offset
        log.sent_start = log.appender.log_start_offset
        write_i32(w, log.partition)
        if self.version >= FIRST_WITH_EPOCH:
            write_i32(w, log.leader_epoch)
        write_i64(w, log.sent_offset)
        if self.version >= FIRST_WITH_LAST_EPOCH:
            write_i32(w, -1)  # the logs were compared before
        write_i64(w, log.sent_start)
        write_i32(w, self.partition_bytes_max)
        self.end_struct(w)
        return 0

    cdef void put_count(self, Writer* w, int32_t count) noexcept:
        if self.version >= FETCH_FLEXIBLE:
            write_compact_array_count(w, count)
        else:
            write_array_count(w, count)

    cdef void put_topic(self, Writer* w, bytes topic) noexcept:
        if self.version >= FETCH_FLEXIBLE:
            write_compact_string(w, <const uint8_t*>PyBytes_AS_STRING(topic), <int32_t>len(topic))
        else:
            write_string(w, <const uint8_t*>PyBytes_AS_STRING(topic), <int32_t>len(topic))

    cdef void end_struct(self, Writer* w) noexcept:
        if self.version >= FETCH_FLEXIBLE:
            write_no_tagged_fields(w)

    # ---- the response --------------------------------------------------------------------------------------------

    def read(self, Py_ssize_t limit, int64_t now_ms) -> bool:
        """Read up to ``limit`` bytes of the response and append the records in them; True if the response is complete.

        Raises OSError, ValueError: the connection is of no use any more.
        """
        cdef ReadStatus status
        self.link.receive(limit)
        if not self.link.in_frame():
            return False
        while True:
            if self.stage == RECORDS:
                if not self.take_records(now_ms):
                    return False
                continue
            status = self.step()
            if status == READ_TRUNCATED:
                if available(&self.link.stream) == self.link.stream.frame_left or available(&self.link.stream) > ELEMENT_MAX:
                    raise ValueError("a fetch response ends in the middle, or has a name that is too long")
                return False
            if status != READ_OK:
                raise ValueError("a fetch response has a length that cannot be")
            if self.stage == HEAD:
                return True

    cdef ReadStatus step(self) except? READ_TRUNCATED:
        """Read the next element of the response, if it has arrived."""
        cdef Reader r = make_reader(response_data(&self.link.stream), available(&self.link.stream))
        cdef const uint8_t* before = r.pos
        cdef ReadStatus status
        if self.stage == HEAD:
            status = self.read_head(&r)
        elif self.stage == TOPIC:
            status = self.read_topic(&r)
        elif self.stage == PARTITION:
            status = self.read_partition(&r, before)
        else:
            status = skip_tagged_fields(&r) if self.version >= FETCH_FLEXIBLE else READ_OK
            if status == READ_OK and self.stage == PARTITION_END:
                self.stage = PARTITION if self.partitions_left > 0 else TOPIC_END
            elif status == READ_OK and self.stage == TOPIC_END:
                self.stage = TOPIC if self.topics_left > 0 else FRAME_END
            elif status == READ_OK:
                consume(&self.link.stream, r.pos - before)
                self.end_response()
                return READ_OK
        if status == READ_OK:
            consume(&self.link.stream, r.pos - before)
        return status

    cdef ReadStatus read_head(self, Reader* r) noexcept:
        cdef int32_t throttle_ms = 0
        cdef ReadStatus status = READ_OK
        if self.version >= FETCH_FLEXIBLE:
            status = skip_tagged_fields(r)  # of the response's header
        if status == READ_OK:
            status = read_i32(r, &throttle_ms)
        if status == READ_OK:
            status = read_i16(r, &self.error_code)
        if status == READ_OK:
            status = read_i32(r, &self.told_session)
        if status == READ_OK:
            status = self.read_count(r, &self.topics_left)
        if status == READ_OK:
            self.had_records = False
            self.is_empty = self.topics_left <= 0
            self.stage = TOPIC if self.topics_left > 0 else FRAME_END
        return status

    cdef ReadStatus read_count(self, Reader* r, int32_t* count) noexcept:
        # The elements have not arrived yet: nothing is allocated for them, so their number is not limited here.
        if self.version >= FETCH_FLEXIBLE:
            return read_compact_array_count(r, 0, count)
        return read_array_count(r, 0, count)

    cdef ReadStatus read_topic(self, Reader* r) except? READ_TRUNCATED:
        cdef const uint8_t* name = NULL
        cdef int32_t size = 0
        cdef ReadStatus status
        if self.version >= FETCH_FLEXIBLE:
            status = read_compact_string(r, &name, &size)
        else:
            status = read_string(r, &name, &size)
        if status == READ_OK:
            status = self.read_count(r, &self.partitions_left)
        if status == READ_OK:
            self.topic = self.topics.get(PyBytes_FromStringAndSize(<const char*>name, max(size, 0)))
            self.topics_left -= 1
            self.stage = PARTITION if self.partitions_left > 0 else TOPIC_END
        return status

    cdef ReadStatus read_partition(self, Reader* r, const uint8_t* before) except? READ_TRUNCATED:
        cdef int32_t partition = 0, ignored = 0
        cdef int16_t error = 0
        cdef int64_t high_watermark = 0, stable = 0, start = 0
        cdef uint32_t size = 0
        cdef int32_t records = 0
        cdef ReadStatus status = read_i32(r, &partition)
        if status == READ_OK:
            status = read_i16(r, &error)
        if status == READ_OK:
            status = read_i64(r, &high_watermark)
        if status == READ_OK:
            status = read_i64(r, &stable)
        if status == READ_OK:
            status = read_i64(r, &start)
        if status == READ_OK:
            status = self.skip_aborted(r)
        if status == READ_OK and self.version >= FIRST_WITH_REPLICA:
            status = read_i32(r, &ignored)
        if status == READ_OK and self.version >= FETCH_FLEXIBLE:
            status = read_uvarint(r, &size)
            records = <int32_t>(<int64_t>size - 1)
            if size > 0x80000000u:
                return READ_BAD_LENGTH
        elif status == READ_OK:
            status = read_i32(r, &records)
        if status != READ_OK:
            return status
        if records > self.link.stream.frame_left - (r.pos - before):
            raise ValueError(f"a fetch response announces {records} bytes of records and ends before")
        self.partitions_left -= 1
        self.records_left = max(records, 0)
        self.begin_partition(partition, error, high_watermark, start)
        self.stage = RECORDS
        return READ_OK

    cdef ReadStatus skip_aborted(self, Reader* r) noexcept:
        """Aborted transactions, which a follower is not sent."""
        cdef int32_t count = 0
        cdef ReadStatus status = self.read_count(r, &count)
        while status == READ_OK and count > 0:
            status = skip(r, 16)
            if status == READ_OK and self.version >= FETCH_FLEXIBLE:
                status = skip_tagged_fields(r)
            count -= 1
        return status

    cdef int begin_partition(self, int32_t partition, int16_t error, int64_t high_watermark, int64_t start) except -1:
        cdef FetchedLog log = None
        if self.topic is not None:
            log = self.topic.get(partition)
        self.has_appended = self.is_cut_short = False
        self.log = None
        if log is None or not log.in_session or log.sent_offset != log.appender.next_offset:
            return 0
        if error:
            self.events.append((log, ERROR, error))
            return 0
        self.told_high_watermark = high_watermark
        self.told_start = start
        self.log = log
        return 0

    # Append the received part of a partition's records. False: there are more to come.
    cdef bint take_records(self, int64_t now_ms) except -1:
        cdef:
            Py_ssize_t here = <Py_ssize_t>min(<int64_t>available(&self.link.stream), self.records_left)
            Fetched out
        if self.log is None or self.is_cut_short:
            self.pass_over(here)
            if self.records_left > 0:
                return False
        elif self.records_left > 0:
            try:
                append_fetched(self.log.appender, response_data(&self.link.stream), here, self.log.leader_epoch, now_ms, &out)
                if self.begins_earlier(&out):
                    self.log.appender.log.restart_at(out.base_offset, now_ms)
                    return True
            except (StorageError, OSError) as error:
                self.events.append((self.log, STORAGE, error))
                self.log = None
                return True
            self.note_taken(&out)
            if self.records_left > 0:
                return self.log is None or self.is_cut_short
        self.had_records |= self.has_appended
        self.end_partition()
        self.stage = PARTITION_END
        return True

    # Whether the leader's log starts within its first batch, or after deleted records of it: an empty log begins where
    # that batch does.
    cdef bint begins_earlier(self, const Fetched* out) noexcept nogil:
        return (
            out.fault == FETCHED_OFFSET_BACK
            and out.base_offset >= 0
            and self.log.appender.next_offset == self.log.appender.log_start_offset
        )

    cdef void pass_over(self, Py_ssize_t size) noexcept nogil:
        consume(&self.link.stream, size)
        self.records_left -= size

    # Some batches were appended. The rest may be the beginning of one, at fault, or cut off by a limit.
    cdef int note_taken(self, Fetched* out) except -1:
        self.pass_over(out.taken)
        if out.taken > 0:
            self.has_appended = True
            self.bytes_total += out.taken
            if self.log.throttled:
                self.throttled_bytes += out.taken
            self.touched.append(self.log.appender)
        if out.fault == FETCHED_ALL and self.records_left > 0 and out.needed > self.records_left:
            if self.has_appended or self.had_records:
                self.is_cut_short = True
                return 0
            # The first batch of a response is whole, however long it is: another request would get the same.
            out.fault = FETCHED_BAD_LENGTH
        if out.fault != FETCHED_ALL:
            self.events.append((self.log, FAULT, (
                <int>out.fault, out.taken, out.needed, out.base_offset, out.leader_epoch, out.stored_crc,
                out.computed_crc)))
            self.log = None
        elif self.records_left > 0:
            self.link.need(out.needed)
        return 0

    cdef int end_partition(self) except -1:
        cdef FetchedLog log = self.log
        if log is None:
            return 0
        self.log = None
        log.behind = self.told_high_watermark > log.appender.next_offset
        log.show_lag(self.told_high_watermark)
        if log.lags != log.behind:
            self.note_lag(log, log.behind)
        if log.appender.next_offset != log.sent_offset or log.appender.log_start_offset != log.sent_start:
            log.note_end()
            self.queue(log)
        if not log.raise_high_watermark(self.told_high_watermark):
            self.events.append((log, HIGH_WATERMARK, self.told_high_watermark))
        if log.appender.dirty:
            self.touched.append(log.appender)
        # By then the high watermark is where an event before this one may have raised it.
        if log.appender.log_start_offset < self.told_start <= min(self.told_high_watermark, log.appender.next_offset):
            self.events.append((log, LOG_START, self.told_start))
        return 0

    cdef int end_response(self) except -1:
        if self.link.stream.frame_left != 0:
            raise ValueError(f"a fetch response is followed by {self.link.stream.frame_left} bytes")
        self.link.end_frame()
        self.stage = HEAD
        if self.error_code:
            # The session is unknown, or the leader rejects fetches: begin a new one.
            self.session_epoch = 0
            self.events.append((None, ERROR, self.error_code))
        elif self.session_epoch == 0:
            self.session_id = self.told_session
            self.session_epoch = 1 if self.told_session != 0 else 0
        elif self.session_epoch == SESSION_EPOCH_MAX:
            self.session_epoch = 1
        else:
            self.session_epoch += 1
        return 0


# The number of runs of rows with the same topic.
cdef int topic_runs(list rows) except -1:
    cdef int runs = 0
    cdef bytes last = None
    cdef FetchedLog log
    for log in rows:
        if last is None or log.topic != last:
            last = log.topic
            runs += 1
    return runs
