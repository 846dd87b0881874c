"""When records were written, for lag in seconds: by the index of their segment.

Reads the files of logs, as network processes do, and changes nothing: what is not where an index
says is unknown, and its owner finds out about the damage.
"""

from __future__ import annotations

import os
import struct
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable

from kbroker._ext.log.log_scan import find_batch
from kbroker.storage.formats import INDEX_SUFFIX, LOG_SUFFIX, partition_dir_name, segment_name
from kbroker.types import Offset
from kbroker.workers.exporter.partitions import Place

# BOUND: records whose times are remembered, and how many are looked up for one scrape: the others
# are absent until the next one.
TIMES_MAX = 100_000
LOOKUPS_MAX = 1_000
_ENTRY = struct.Struct(">ii")


class RecordAges:
    """place_of: by topic and partition."""

    def __init__(
        self, place_of: Callable[[str, int], Place | None], now_ms: Callable[[], int]
    ) -> None:
        self._place_of = place_of
        self._now_ms = now_ms
        self._times: OrderedDict[tuple[str, int, int], int] = OrderedDict()
        self._lookups_left = LOOKUPS_MAX

    def begin(self) -> None:
        """Another scrape."""
        self._lookups_left = LOOKUPS_MAX

    def age_s(self, topic: str, partition: int, offset: int) -> float | None:
        """How long ago the record at an offset was written; None if that is unknown."""
        key = (topic, partition, offset)
        timestamp = self._times.get(key)
        if timestamp is None:
            if self._lookups_left <= 0:
                return None
            self._lookups_left -= 1
            timestamp = self._look_up(topic, partition, offset)
            if timestamp is None:
                return None
            self._times[key] = timestamp
            if len(self._times) > TIMES_MAX:
                self._times.popitem(last=False)
        else:
            self._times.move_to_end(key)
        return max(0, self._now_ms() - timestamp) / 1000

    def _look_up(self, topic: str, partition: int, offset: int) -> int | None:
        place = self._place_of(topic, partition)
        if place is None or offset >= place[1]:
            return None
        try:
            return timestamp_of(f"{place[0]}/{partition_dir_name(topic, partition)}", offset, place)
        except (OSError, ValueError):
            return None  # deleted meanwhile, or damaged


def timestamp_of(directory: str, offset: int, place: Place) -> int | None:
    """The largest timestamp of the batch with an offset, or of the next one after it."""
    bases = sorted(
        int(name.removesuffix(LOG_SUFFIX))
        for name in os.listdir(directory)
        if name.endswith(LOG_SUFFIX) and name.removesuffix(LOG_SUFFIX).isdigit()
    )
    at = max(bisect_right(bases, offset) - 1, 0)
    for base in bases[at:]:
        path = os.path.join(directory, segment_name(Offset(base), ""))
        fd = os.open(path + LOG_SUFFIX, os.O_RDONLY | os.O_CLOEXEC)
        try:
            end = place[3] if base == place[2] else os.fstat(fd).st_size
            start = indexed_position(path + INDEX_SUFFIX, offset - base, end)
            batch = find_batch(fd, start, end, offset=offset)
        finally:
            os.close(fd)
        if batch is not None:
            return batch.max_timestamp if batch.max_timestamp >= 0 else None
    return None


def indexed_position(path: str, relative_offset: int, end: int) -> int:
    """Where the index says that a batch at or before an offset begins; 0 without an entry."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return 0
    try:
        low, high = 0, os.fstat(fd).st_size // _ENTRY.size
        position = 0
        while low < high:
            middle = (low + high) // 2
            data = os.pread(fd, _ENTRY.size, middle * _ENTRY.size)
            entry, place = _ENTRY.unpack(data) if len(data) == _ENTRY.size else (0, 0)
            # Behind the last entry, an index that is written to has zeros.
            if (entry == 0 and place == 0 and middle > 0) or entry > relative_offset:
                high = middle
            else:
                position = place if 0 <= place < end else 0
                low = middle + 1
        return position
    finally:
        os.close(fd)
