"""The ``.snapshot`` files of a partition: producer state as of the offset in the file's name.

A clean shutdown writes one for every log that has changed, and has two seconds for all of them.
Making a file is most of that, so a spare one is made in the background when a log is first flushed.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress

from kbroker._ext.log.producer_state import CorruptSnapshotError, ProducerState
from kbroker.descriptors import opening
from kbroker.errors import may_do_without
from kbroker.storage.files import list_directory, remove_if_present, replace_file
from kbroker.storage.formats import (
    SNAPSHOT_SUFFIX,
    TEMPORARY_SUFFIX,
    base_offset_of,
    segment_name,
)
from kbroker.types import Offset

logger = logging.getLogger(__name__)

# Empty until a stop gives it a snapshot's name; a start after any other end removes it.
SPARE = "spare" + SNAPSHOT_SUFFIX + TEMPORARY_SUFFIX


def snapshot_path(directory: str, offset: int) -> str:
    return os.path.join(directory, segment_name(offset, SNAPSHOT_SUFFIX))


def list_snapshots(directory: str) -> list[int]:
    """Offsets of the snapshots in ``directory``, rising. Raises OSError."""
    snapshots = []
    for name in list_directory(directory):
        offset = base_offset_of(name)
        if offset is not None and name == segment_name(offset, SNAPSHOT_SUFFIX):
            snapshots.append(offset)
    return sorted(snapshots)


def load_newest(directory: str, offset_max: Offset, log_start_offset: Offset) -> ProducerState:
    """The newest readable snapshot at or below ``offset_max``; an empty state at
    ``log_start_offset`` without one.

    An unreadable snapshot is removed with a warning: an older one and a longer replay give the same
    state.
    """
    for offset in reversed(list_snapshots(directory)):
        if offset > offset_max or offset < log_start_offset:
            continue
        path = snapshot_path(directory, offset)
        try:
            with opening(path):
                file = open(path, "rb")
            with file:
                return ProducerState.from_snapshot(file.read(), offset)
        except CorruptSnapshotError as error:
            logger.warning("cannot read %s (%s); replaying the log instead", path, error)
            remove_if_present(path)
    return ProducerState(log_start_offset)


def make_spare(directory: str) -> None:
    """Make the file that ``write_snapshot`` may use up. Without one it makes its own."""
    with suppress(OSError):  # a full disk, for instance; the next call tries again
        path = os.path.join(directory, SPARE)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644))


def write_snapshot(
    directory: str, producers: ProducerState, *, sync: bool = False, uses_spare: bool = False
) -> str | None:
    """Write the state as of its end offset; the path, or None if there is no room for it. Raises
    OSError.

    uses_spare: ``make_spare`` has run, and is not running.
    """
    path = snapshot_path(directory, producers.end_offset)
    try:
        spare = os.path.join(directory, SPARE) if uses_spare else None
        replace_file(path, producers.to_snapshot(), sync=sync, spare=spare)
    except OSError as error:
        if not may_do_without(error):
            raise
        logger.warning("cannot write %s, so the next start replays more: %s", path, error)
        return None
    return path


def remove_above(directory: str, offset: Offset) -> None:
    """Remove snapshots that include records at or above ``offset``. Raises OSError."""
    for snapshot in list_snapshots(directory):
        if snapshot > offset:
            remove_if_present(snapshot_path(directory, snapshot))


def remove_unneeded(directory: str, keep: set[int]) -> None:
    """Remove snapshots whose offset is neither in ``keep`` (segment bases) nor the newest. Raises
    OSError.
    """
    for snapshot in list_snapshots(directory)[:-1]:
        if snapshot not in keep:
            remove_if_present(snapshot_path(directory, snapshot))
