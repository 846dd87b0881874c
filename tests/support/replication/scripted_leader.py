"""A minimal leader: it serves followers like Kafka, or as wrongly as a test wants.

Logs are lists of batches in memory. Fetch sessions are kept, waits are kept, epochs are answered;
``spoil`` changes any response before it is sent.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from support.brokers.fake_broker import FakeBroker
from support.storage.log_store import batch

from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Message
from kbroker.protocol.messages.fetch import FetchResponse
from kbroker.protocol.messages.list_offsets import ListOffsetsResponse
from kbroker.protocol.messages.offset_for_leader_epoch import OffsetForLeaderEpochResponse

OUT_OF_RANGE, UNKNOWN_PARTITION, NOT_LEADER = 1, 3, 6
SESSION_NOT_FOUND, BAD_SESSION_EPOCH, FENCED, UNKNOWN_EPOCH = 70, 71, 74, 75
Key = tuple[str, int]


def at(offset: int, data: bytes, epoch: int) -> bytes:
    """The batch in the leader's log; no checksum covers offset and epoch."""
    return offset.to_bytes(8, "big") + data[8:12] + epoch.to_bytes(4, "big") + data[16:]


class LedLog:
    """One partition: its batches with base offset, end offset and epoch."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.batches: list[tuple[int, int, int, bytes]] = []
        self.start = 0
        self.end = 0
        # None: all that is in the log.
        self.high_watermark: int | None = None

    def append(
        self, values: int | list[bytes] = 1, *, epoch: int | None = None, **more: Any
    ) -> None:
        count = values if isinstance(values, int) else len(values)
        self.append_bytes(batch(values, **more), count, epoch)

    def append_bytes(self, data: bytes, count: int, epoch: int | None = None) -> None:
        epoch = self.epoch if epoch is None else epoch
        self.batches.append((self.end, self.end + count, epoch, at(self.end, data, epoch)))
        self.end += count

    def data(self, offset: int = 0, size_max: int = 1 << 40) -> bytes:
        """Whole batches from the one with ``offset`` on; the first whatever its size."""
        found: list[bytes] = []
        for _, end, _, data in self.batches:
            if end <= offset:
                continue
            if found and sum(map(len, found)) + len(data) > size_max:
                break
            found.append(data)
        return b"".join(found)

    def epoch_end(self, asked: int) -> tuple[int, int]:
        if asked == self.epoch:
            return asked, self.end
        starts: dict[int, int] = {}
        for base, _, epoch, _ in self.batches:
            starts.setdefault(epoch, base)
        known = [epoch for epoch in starts if epoch <= asked]
        later = [epoch for epoch in [*starts, self.epoch] if epoch > asked]
        if not later:
            return -1, -1
        end = starts.get(min(later), self.end)
        return (max(known), end) if known else (asked, end)


class ScriptedLeader(FakeBroker):
    """spoil(api key, request, response): changes a response, or returns a replacement: bytes,
    pieces of them, None to close the connection.
    """

    def __init__(self) -> None:
        super().__init__(
            {
                ApiKey.FETCH: self._spoiled(ApiKey.FETCH, self.fetch),
                ApiKey.OFFSET_FOR_LEADER_EPOCH: self._spoiled(
                    ApiKey.OFFSET_FOR_LEADER_EPOCH, self.epochs
                ),
                ApiKey.LIST_OFFSETS: self._spoiled(ApiKey.LIST_OFFSETS, self.offsets),
            }
        )
        self.logs: dict[Key, LedLog] = {}
        self.sessions: dict[int, dict[Key, Any]] = {}
        self.epochs_of_sessions: dict[int, int] = {}
        self.keeps_sessions = True
        self.spoil: Callable[[int, Any, Any, dict[str, Any]], Any] | None = None
        self.changed = threading.Condition()
        self.fetches: list[Any] = []
        self.hurried = 0  # fetches up to this one do not wait
        self.progress: dict[Key, int] = {}  # offsets that were fetched from

    def log(self, topic: str = "t", partition: int = 0, epoch: int = 1) -> LedLog:
        return self.logs.setdefault((topic, partition), LedLog(epoch))

    def publish(self) -> None:
        """Records were appended: waiting fetches look again."""
        with self.changed:
            self.changed.notify_all()

    def hurry(self) -> None:
        """Respond to the fetch that waits with what there is."""
        with self.changed:
            self.hurried = len(self.fetches)
            self.changed.notify_all()

    def _spoiled(
        self, key: int, answer: Callable[[Any], Message]
    ) -> Callable[[Any, dict[str, Any]], Any]:
        def spoiled(request: Any, state: dict[str, Any]) -> Any:
            response = answer(request)
            if self.spoil is None:
                return response
            return self.spoil(key, request, response, state)

        return spoiled

    # ---- Fetch ----

    def fetch(self, request: Any) -> Message:
        with self.changed:
            self.fetches.append(request)
            number = len(self.fetches)
            error, session = self._session(request)
            if error:
                return FetchResponse(error_code=error)
            wanted = self.sessions[session] if session else _named(request)
            until = time.monotonic() + request.max_wait_ms / 1000
            while True:
                rows = self._rows(request, wanted)
                left = until - time.monotonic()
                if (
                    left <= 0
                    or number <= self.hurried
                    or any(row.records or row.error_code or row.diverging_epoch for _, row in rows)
                ):
                    break
                if session and any(self._is_news(key, row) for key, row in rows):
                    break
                self.changed.wait(left)
            if session and request.session_epoch != 0:
                rows = [
                    (key, row)
                    for key, row in rows
                    if row.records or row.error_code or self._is_news(key, row)
                ]
            for key, row in rows:
                self.logs_told[key] = row.high_watermark, row.log_start_offset
            return _response(session, rows)

    @property
    def logs_told(self) -> dict[Key, tuple[int, int]]:
        return self.__dict__.setdefault("_told", {})

    def _is_news(self, key: Key, row: Any) -> bool:
        return self.logs_told.get(key) != (row.high_watermark, row.log_start_offset)

    def _session(self, request: Any) -> tuple[int, int]:
        """(error, session): 0 without one."""
        if request.session_epoch == 0:
            self.sessions.pop(request.session_id, None)
            if not self.keeps_sessions:
                return 0, 0
            session = len(self.fetches)
            self.sessions[session] = _named(request)
            self.epochs_of_sessions[session] = 1
            return 0, session
        if request.session_epoch == -1:
            return 0, 0
        if request.session_id not in self.sessions:
            return SESSION_NOT_FOUND, 0
        if self.epochs_of_sessions[request.session_id] != request.session_epoch:
            return BAD_SESSION_EPOCH, 0
        self.epochs_of_sessions[request.session_id] += 1
        self.sessions[request.session_id] |= _named(request)
        for topic in request.forgotten_topics_data:
            for partition in topic.partitions:
                del self.sessions[request.session_id][topic.topic, partition]
        return 0, request.session_id

    def _rows(self, request: Any, wanted: dict[Key, Any]) -> list[tuple[Key, Any]]:
        rows, left = [], request.max_bytes
        for key, asked in wanted.items():
            row = FetchResponse.PartitionData(partition_index=key[1])
            log = self.logs.get(key)
            row.error_code = _error(log, asked.current_leader_epoch)
            if log is not None and not row.error_code:
                row.high_watermark = log.end if log.high_watermark is None else log.high_watermark
                row.log_start_offset = log.start
                if not log.start <= asked.fetch_offset <= log.end:
                    row.error_code = OUT_OF_RANGE
                elif diverging := _diverging(log, asked):
                    row.diverging_epoch = diverging
                elif left > 0:
                    size_max = min(left, asked.partition_max_bytes)
                    row.records = log.data(asked.fetch_offset, size_max) or None
                    left -= len(row.records or b"")
                self.progress[key] = asked.fetch_offset
            rows.append((key, row))
        return rows

    # ---- OffsetForLeaderEpoch, ListOffsets ----

    def epochs(self, request: Any) -> Message:
        response = OffsetForLeaderEpochResponse()
        topic_of = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult
        for topic in request.topics:
            rows = []
            for asked in topic.partitions:
                log = self.logs.get((topic.topic, asked.partition))
                error = _error(log, asked.current_leader_epoch)
                epoch, end = (-1, -1) if log is None or error else log.epoch_end(asked.leader_epoch)
                rows.append(
                    OffsetForLeaderEpochResponse.EpochEndOffset(
                        partition=asked.partition,
                        error_code=error,
                        leader_epoch=epoch,
                        end_offset=end,
                    )
                )
            response.topics.append(topic_of(topic=topic.topic, partitions=rows))
        return response

    def offsets(self, request: Any) -> Message:
        response = ListOffsetsResponse()
        topic_of = ListOffsetsResponse.ListOffsetsTopicResponse
        for topic in request.topics:
            rows = []
            for asked in topic.partitions:
                log = self.logs.get((topic.name, asked.partition_index))
                error = _error(log, asked.current_leader_epoch)
                offset = -1
                if log is not None and not error:
                    offset = log.end if asked.timestamp == -1 else log.start
                rows.append(
                    ListOffsetsResponse.ListOffsetsPartitionResponse(
                        partition_index=asked.partition_index, error_code=error, offset=offset
                    )
                )
            response.topics.append(topic_of(name=topic.name, partitions=rows))
        return response


def _error(log: LedLog | None, current_leader_epoch: int) -> int:
    if log is None:
        return UNKNOWN_PARTITION
    if current_leader_epoch not in (-1, log.epoch):
        return FENCED if current_leader_epoch < log.epoch else UNKNOWN_EPOCH
    return 0


def _diverging(log: LedLog, asked: Any) -> Any:
    """Where the logs part, if the fetch names its last epoch (version 12)."""
    if asked.last_fetched_epoch < 0:
        return None
    epoch, end = log.epoch_end(asked.last_fetched_epoch)
    if epoch == asked.last_fetched_epoch and end >= asked.fetch_offset:
        return None
    return FetchResponse.EpochEndOffset(epoch=epoch, end_offset=end)


def _named(request: Any) -> dict[Key, Any]:
    return {(t.topic, p.partition): p for t in request.topics for p in t.partitions}


def _response(session: int, rows: list[tuple[Key, Any]]) -> FetchResponse:
    response = FetchResponse(session_id=session)
    last: str | None = None
    for (topic, _), row in rows:
        if topic != last:
            response.responses.append(
                FetchResponse.FetchableTopicResponse(topic=topic, partitions=[])
            )
            last = topic
        response.responses[-1].partitions.append(row)
    return response


def cut_points(data: bytes, count: int) -> list[bytes]:
    """``data`` in about this many pieces."""
    step = max(len(data) // count, 1)
    places = [*range(0, len(data), step), len(data)]
    return [data[a:b] for a, b in pairwise(places)]
