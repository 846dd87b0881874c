"""The cleaner's view of the segments of each compacted log.

The owning io worker is asked again only when the slot's ``segment_version`` has changed, so on an
idle broker the cleaner costs one look at the partition table.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from kbroker._ext.log.log_scan import find_batch
from kbroker.errors import WireError
from kbroker.ipc.calls import CLEANABLE_SEGMENTS, CleanableLog, CleanableSegments
from kbroker.ipc.process_table import Address
from kbroker.ipc.rpc import Rpc
from kbroker.storage.cleaning.cleaner_policy import (
    CleanableSegment,
    CompactionRules,
    DirtyRange,
    dirty_range,
)
from kbroker.storage.formats import INDEX_SUFFIX, LOG_SUFFIX, segment_name
from kbroker.storage.topic_settings import NO_LIMIT
from kbroker.types import Offset, SlotId

# BOUND: logs described in one message.
SLOTS_PER_CALL = 128


class Compacted(Protocol):
    """A log to compact, with its data for the choice."""

    slot: SlotId
    slot_incarnation: int
    rules: CompactionRules


class LogView:
    """The segments of one log, as of a ``segment_version``."""

    __slots__ = (
        "_known_times",
        "active",
        "cuts",
        "incarnation",
        "log_dir",
        "path",
        "segments",
        "version",
    )

    def __init__(self, described: CleanableLog, version: int, entry: Compacted) -> None:
        self.version = version
        self.incarnation = entry.slot_incarnation
        self._known_times = _wanted_times(entry.rules)
        self.log_dir = described.log_dir
        self.path = described.path
        self.cuts = described.cuts
        self.active = described.active
        wants_first = _wants_first(entry.rules)
        self.segments = [
            CleanableSegment(
                base,
                following,
                size,
                0,
                newest,
                self._first_timestamp(base, size) if wants_first else -1,
            )
            for base, following, size, newest in described.segments
        ]

    def is_current(self, version: int, entry: Compacted) -> bool:
        return (
            self.version == version
            and self.incarnation == entry.slot_incarnation
            and self._known_times == _wanted_times(entry.rules)
        )

    def shows(self, described: CleanableLog) -> bool:
        """Whether the log has still the files that it had; it may have more by now."""
        present = {(segment.base_offset, segment.size) for segment in described.segments}
        return (self.path, self.cuts) == (described.path, described.cuts) and all(
            (segment.base_offset, segment.size) in present for segment in self.segments
        )

    def _first_timestamp(self, base: int, size: int) -> int:
        """The timestamp of a segment's first batch; -1 if it cannot be read."""
        try:
            fd = os.open(self._path_of(base, LOG_SUFFIX), os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return -1
        try:
            batch = find_batch(fd, 0, size)
        except (OSError, ValueError):
            return -1
        finally:
            os.close(fd)
        return -1 if batch is None else batch.max_timestamp

    def _path_of(self, base: int, suffix: str) -> str:
        return os.path.join(self.path, segment_name(base, suffix))

    def with_index_sizes(self) -> list[CleanableSegment]:
        """The segments, with the bytes of their offset indexes."""
        return [
            segment._replace(index_bytes=_size_of(self._path_of(segment.base_offset, INDEX_SUFFIX)))
            for segment in self.segments
        ]

    def dirty_range(
        self,
        checkpoint: Offset | None,
        rules: CompactionRules,
        wall_ms: int,
        slot: Mapping[str, Any],
    ) -> DirtyRange:
        """slot: the log's row of the partition table."""
        return dirty_range(
            self.segments,
            checkpoint,
            rules,
            wall_ms,
            log_start_offset=slot["log_start_offset"],
            log_end_offset=slot["log_end"][0],
            last_stable_offset=slot["last_stable"][0],
        )


class LogViews:
    """The views of all compacted logs, by slot."""

    def __init__(self, rpc: Rpc, owner_of: Callable[[SlotId], Address]) -> None:
        self._rpc = rpc
        self._owner_of = owner_of
        self._views: dict[int, LogView] = {}

    def get(self, slot: SlotId) -> LogView | None:
        return self._views.get(slot)

    def drop(self, slot: SlotId) -> None:
        """Ask again next time."""
        self._views.pop(slot, None)

    def keep(self, slots: set[int]) -> None:
        """Forget all but these."""
        for slot in self._views.keys() - slots:
            del self._views[slot]

    async def refresh(self, entries: Sequence[Compacted], versions: Mapping[int, int]) -> None:
        """Get views that are not older than ``versions``, from every owner that responds."""
        stale: dict[tuple[Address, bool], list[Compacted]] = {}
        for entry in entries:
            view = self._views.get(entry.slot)
            if view is None or not view.is_current(versions[entry.slot], entry):
                self.drop(entry.slot)
                owner = self._owner_of(entry.slot)
                stale.setdefault((owner, _wants_newest(entry.rules)), []).append(entry)
        for (owner, timestamps), waiting in stale.items():
            for at in range(0, len(waiting), SLOTS_PER_CALL):
                asked = {entry.slot: entry for entry in waiting[at : at + SLOTS_PER_CALL]}
                request = CleanableSegments(list(asked), timestamps)
                try:
                    reply = await self._rpc.call(owner, CLEANABLE_SEGMENTS, request)
                except WireError:
                    break  # it restarts; its logs are for the next time
                for described in reply:
                    slot = described.slot
                    self._views[slot] = LogView(described, versions[slot], asked[slot])


def _wants_newest(rules: CompactionRules) -> bool:
    return rules.lag_ms_min > 0


def _wants_first(rules: CompactionRules) -> bool:
    return rules.lag_ms_max < NO_LIMIT


def _wanted_times(rules: CompactionRules) -> tuple[bool, bool]:
    """Whether the newest and the first timestamp of each segment is asked for."""
    return _wants_newest(rules), _wants_first(rules)


def _size_of(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0
