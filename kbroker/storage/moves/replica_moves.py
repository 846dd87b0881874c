"""The moves of an io worker's replicas between log directories: start, pace, finish, give up.

Runs in the worker's loop. One thread copies for all moves, a slice of each in turn, within
``replica.alter.log.dirs.io.max.bytes.per.second``. ``turn`` is called in every turn of the loop,
after its responses are out.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from kbroker.errors import ErrorCode, may_do_without
from kbroker.logcontext import Whole
from kbroker.storage.background import BackgroundDisk
from kbroker.storage.checkpoint import TopicPartition
from kbroker.storage.dirs.log_dir import LocalLogDir
from kbroker.storage.dirs.log_dirs import LocalLogDirs
from kbroker.storage.files import blames_disk
from kbroker.storage.moves.replica_move import SLICE_BYTES, ReplicaMove, future_name_is_too_long
from kbroker.storage.moves.segment_copy import SourceError

if TYPE_CHECKING:
    from kbroker.storage.log.partition_log import PartitionLog
    from kbroker.storage.manager.log_manager import LogManager

logger = logging.getLogger(__name__)

RATE_KEY = "replica.alter.log.dirs.io.max.bytes.per.second"
# The length of a slice if the rate is limited, and the interval in which the loop checks the
# thread.
SLICE_MS = 200
POLL_MS = 5
# How long a move waits for space on a full disk, or for a log that may not change right now.
FULL_DISK_PAUSE_MS = 5_000
BUSY_PAUSE_MS = 5
# How long no new flush of a log starts, so that the move does not meet one each time it checks.
FLUSH_HOLD_MS = 10_000


class ReplicaMoves:
    """Created by the LogManager. is_held(slot): the log's files must stay in place for now."""

    def __init__(self, manager: LogManager, dirs: LocalLogDirs, inline: bool = False) -> None:
        self._manager = manager
        self._dirs = dirs
        self._disk = BackgroundDisk(inline=inline)
        self._moves: dict[int, ReplicaMove] = {}
        self._order: deque[int] = deque()
        self._due_ms: dict[int, int] = {}
        self._free_at_ms = 0
        self._is_copying = False
        self.is_held: Callable[[int], bool] = lambda slot: False
        self.on_failed_dir: Callable[[LocalLogDir, object], object] = lambda log_dir, cause: (
            manager.fail_log_dir(log_dir.path, cause)
        )

    def __bool__(self) -> bool:
        return bool(self._moves)

    @property
    def is_active(self) -> bool:
        """Whether ``turn`` has something to do."""
        return bool(self._moves) or self._disk.pending > 0

    def get(self, slot: int) -> ReplicaMove | None:
        return self._moves.get(slot)

    def holds_flushes(self, slot: int) -> bool:
        """Whether a move waits for the last flush of the log in its old place: the switch syncs
        everything.
        """
        move = self._moves.get(slot)
        now_ms = self._manager.clock.monotonic_ms
        return move is not None and now_ms() < move.holds_flushes_until_ms

    # ---- begun and given up ----

    def request(self, key: TopicPartition, slot: int, path: str) -> ErrorCode:
        """AlterReplicaLogDirs for one partition, with Kafka's error codes. slot: -1 for none."""
        manager = self._manager
        target = next((log_dir for log_dir in self._dirs if log_dir.path == path), None)
        if future_name_is_too_long(*key):
            return ErrorCode.INVALID_TOPIC_EXCEPTION
        if target is None:
            return ErrorCode.LOG_DIR_NOT_FOUND
        if target.error is not None:
            return ErrorCode.KAFKA_STORAGE_ERROR
        if manager.placement.is_cordoned(path):
            return ErrorCode.INVALID_REPLICA_ASSIGNMENT
        if slot >= 0 and manager.offline_reason(slot) is not None:
            return ErrorCode.KAFKA_STORAGE_ERROR
        log = manager.log(slot)
        if log is None or log.key != key:
            manager.placement.prefer(key, path)
            return ErrorCode.REPLICA_NOT_AVAILABLE
        present = self._moves.get(slot)
        if present is not None and present.target is target:
            return ErrorCode.NONE
        if present is not None:
            self.cancel(slot)
        if log.log_dir == path:
            return ErrorCode.NONE
        if not self._dirs.all_online:
            # COMPAT: a future replica in a directory that is offline now would become a second one.
            return ErrorCode.KAFKA_STORAGE_ERROR
        try:
            self._begin(log, target)
        except OSError as error:
            if blames_disk(error):
                self.on_failed_dir(target, error)
            return ErrorCode.KAFKA_STORAGE_ERROR
        return ErrorCode.NONE

    def resume(self, log: PartitionLog) -> None:
        """Continue the move that an earlier run left unfinished, if any."""
        for target in self._dirs:
            for path in target.futures.pop(log.key, ()):
                if target.error is not None or not os.path.isdir(path):
                    continue  # the topic has been deleted and recreated
                is_strange = target.ownership.is_anothers(path, log.owner)
                if is_strange or target.path == log.log_dir or log.slot in self._moves:
                    logger.warning("%s is not a move that can continue; removing it", path)
                    self._manager.delete_later([path], 0)
                else:
                    with suppress(OSError):  # the next start tries again
                        self._begin(log, target, path)

    def remove_orphans(self, exists: Callable[[TopicPartition], bool]) -> None:
        """Remove the remains of an earlier run's moves of partitions that were deleted since.

        Call it in one io worker, once it knows the topics. Nothing goes while a directory is
        offline: the topic of what is in there may not be known yet.
        """
        if not self._dirs.all_online:
            return
        for target in self._dirs:
            for key in [key for key in target.futures if not exists(key)]:
                paths = target.futures.pop(key)
                logger.warning(
                    "%s: its partition was deleted; removing it", Whole(", ".join(paths))
                )
                self._manager.delete_later(paths, 0)

    def _begin(self, log: PartitionLog, target: LocalLogDir, path: str | None = None) -> None:
        logger.info("%s: moving from %s to %s", log.name, log.log_dir, target.path)
        source = self._dirs.at(log.log_dir)
        move = ReplicaMove(log, source, target, path)
        # From here on it continues after any crash.
        os.makedirs(move.path, mode=0o755, exist_ok=True)
        self._moves[log.slot] = move
        self._order.append(log.slot)
        self._due_ms[log.slot] = 0
        target.arriving += 1
        target.arrived(log.key)

    def cancel(self, slot: int) -> None:
        """Cancel the move and remove the copied files."""
        move = self._end(slot)
        if move is None or move.target.error is not None:
            return
        logger.info("%s: the move to %s was cancelled", move.log.name, move.target.path)
        move.target.given_up(move.log.key)
        # Behind the slice that may be under way.
        self._disk.submit(move.discard, lambda _result, _error: None)

    def drop(self, slots: Sequence[int]) -> None:
        """The logs of these slots went offline with their directory; the next start continues the
        moves.
        """
        for slot in slots:
            move = self._end(slot)
            if move is not None:
                move.target.given_up(move.log.key)

    def drop_target(self, target: LocalLogDir) -> None:
        """The directory is offline: cancel moves into it."""
        for slot in [slot for slot, move in self._moves.items() if move.target is target]:
            logger.error(
                "%s cannot be moved: %s is offline", self._moves[slot].log.name, target.path
            )
            self._end(slot)

    def _end(self, slot: int) -> ReplicaMove | None:
        move = self._moves.pop(slot, None)
        if move is not None:
            self._order.remove(slot)
            del self._due_ms[slot]
            move.target.arriving -= 1
        return move

    # ---- paced ----

    def turn(self, now_ms: int) -> list[int]:
        """Continue the moves; returns the slots whose logs are now in another directory. now_ms:
        monotonic.

        One switch at most: each blocks for syncs, and what else the loop serves waits for it.
        """
        self._disk.collect()
        moved: list[int] = []
        for _ in range(len(self._order)):
            # A directory that fails ends all its moves.
            if moved or not self._order or self._is_copying or now_ms < self._free_at_ms:
                break
            slot = self._order[0]
            self._order.rotate(-1)
            if now_ms >= self._due_ms[slot]:
                self._advance(slot, now_ms, moved)
        return moved

    def next_deadline_ms(self, now_ms: int) -> int | None:
        """When to call ``turn`` again."""
        if not self._moves:
            return None
        if self._is_copying:
            return now_ms + POLL_MS
        return max(self._free_at_ms, min(self._due_ms.values()), now_ms + 1)

    def _advance(self, slot: int, now_ms: int, moved: list[int]) -> None:
        move = self._moves[slot]
        try:
            job = move.next_job(self._slice_bytes())
            if job is not None:
                self._submit(slot, move, job)
            elif move.log.sync.is_running or self.is_held(slot):
                if now_ms >= move.holds_flushes_until_ms and not self.is_held(slot):
                    move.holds_flushes_until_ms = now_ms + FLUSH_HOLD_MS
                self._due_ms[slot] = now_ms + BUSY_PAUSE_MS
            else:
                self._switch(slot, move)
                moved.append(slot)
        except (OSError, SourceError) as error:
            self._failed(slot, move, error)

    def _slice_bytes(self) -> int:
        rate = self._rate()
        return SLICE_BYTES if rate is None else max(1, min(SLICE_BYTES, rate * SLICE_MS // 1000))

    def _rate(self) -> int | None:
        """Bytes per second for this worker: its share of the broker's limit."""
        limit: int = self._manager.config[RATE_KEY]
        return None if limit >= 1 << 62 else max(1, limit // self._manager.worker_count)

    def _submit(self, slot: int, move: ReplicaMove, job: Callable[[], int]) -> None:
        started_ms = self._manager.clock.monotonic_ms()
        self._is_copying = True

        def guarded() -> int | SourceError:
            try:
                return job()
            except SourceError as error:
                return error

        def on_done(result: object, error: OSError | None) -> None:
            self._is_copying = False
            rate = self._rate()
            if isinstance(result, int) and rate is not None:
                self._free_at_ms = started_ms + result * 1000 // rate
            failure = error or (result if isinstance(result, SourceError) else None)
            if failure is not None and self._moves.get(slot) is move:
                self._failed(slot, move, failure)

        self._disk.submit(guarded, on_done)

    def _failed(self, slot: int, move: ReplicaMove, error: OSError | SourceError) -> None:
        if isinstance(error, SourceError):
            logger.error("cannot move %s to %s: %s", move.log.name, move.target.path, error)
            self.cancel(slot)
        elif may_do_without(error):
            if not move.waits_for_room:
                logger.warning(
                    "%s: the move waits for space in %s: %s", move.log.name, move.target.path, error
                )
            move.waits_for_room = True
            move.holds_flushes_until_ms = 0
            self._due_ms[slot] = self._manager.clock.monotonic_ms() + FULL_DISK_PAUSE_MS
        else:
            self.on_failed_dir(move.target, error)

    def _switch(self, slot: int, move: ReplicaMove) -> None:
        log, target = move.log, move.target
        source = self._dirs.at(log.log_dir)
        old_path = log.log_dir
        move.switch()
        self._end(slot)
        logger.info("%s: moved from %s to %s", log.name, old_path, target.path)
        try:
            doomed = source.leave(log.key)
        except OSError as error:
            # The next start finds it in both, and knows which one is newer.
            self.on_failed_dir(source, error)
            return
        self._manager.delete_later([doomed], log.settings.file_delete_delay_ms)

        def settle() -> None:
            source.forget(log.key)
            target.end_move(log.key)

        def on_settled(_result: object, error: OSError | None) -> None:
            if error is not None and blames_disk(error):
                self.on_failed_dir(source, error)

        self._manager.in_background(settle, on_settled)

    # ---- described, ended ----

    def describe(self, path: str) -> list[dict[str, Any]]:
        """Future replicas in a directory, for DescribeLogDirs."""
        return [
            {
                "topic": move.log.topic,
                "partition": move.log.partition,
                "size": move.size,
                "lag": max(0, move.log.log_end_offset - move.end_offset),
                "future": True,
            }
            for move in self._moves.values()
            if move.target.path == path
        ]

    def close(self) -> None:
        """Finish the current slice; the next start continues."""
        self._disk.close()
