"""Writes an io worker's lines in the checkpoints of all log directories.

Runs in the worker's loop; the background thread writes the files, one run at a time. A file is
written only when this worker has something new to say in it. While no slot has been published, no
log is looked at for what the slots show, too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from kbroker.errors import may_do_without
from kbroker.storage.background import BackgroundDisk
from kbroker.storage.checkpoint import TopicPartition
from kbroker.storage.dirs.log_dir import CHECKPOINTS, LocalLogDir
from kbroker.storage.formats import (
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
)
from kbroker.storage.log.partition_log import PartitionLog
from kbroker.storage.manager.open_logs import OpenLogs
from kbroker.types import Offset

logger = logging.getLogger(__name__)

# The lines of one checkpoint, by directory.
Lines = list[tuple[LocalLogDir, dict[TopicPartition, Offset]]]

# Those whose values are published in the slots, together with every change of them.
_PUBLISHED = frozenset({LOG_START_CHECKPOINT, HIGH_WATERMARK_CHECKPOINT})

_VALUES: dict[str, Callable[[PartitionLog], Offset]] = {
    RECOVERY_POINT_CHECKPOINT: lambda log: log.recovery_point,
    LOG_START_CHECKPOINT: lambda log: log.log_start_offset,
    HIGH_WATERMARK_CHECKPOINT: lambda log: log.high_watermark,
}


class Content(NamedTuple):
    """What a checkpoint has. writes: those of the slots when the lines were taken."""

    lines: Lines
    writes: int


class CheckpointWriter:
    """start_was_raised: set by the owner when a log start offset has moved and must be written
    soon.
    """

    def __init__(
        self,
        dirs: Collection[LocalLogDir],
        logs: OpenLogs,
        background: BackgroundDisk,
        on_failure: Callable[[str, OSError], object],
    ) -> None:
        """on_failure: called with a directory that failed."""
        self._dirs = dirs
        self._logs = logs
        self._background = background
        self._on_failure = on_failure
        self.is_running = False
        self.start_was_raised = False
        # The content last written, by file name; None if the file may differ.
        self._saved: dict[str, Content | None] = {}

    def write(self, names: Collection[str]) -> None:
        """Write those files in the background, unless a run is under way."""
        if self.is_running:
            return
        if LOG_START_CHECKPOINT in names:
            self.start_was_raised = False
        files = self._news(names)
        if not files:
            return
        self.is_running = True
        self._saved.update(dict.fromkeys(files))

        def on_done(result: object, _error: OSError | None) -> None:
            self._on_written(files, result)  # type: ignore[arg-type]

        self._background.submit(lambda: _write(files), on_done)

    def write_now(self) -> list[tuple[LocalLogDir, OSError]]:
        """Write all files here and now; the failures, by directory."""
        return _write(self._news(CHECKPOINTS))

    def wait(self) -> None:
        """Wait until no run is in progress."""
        self._background.wait()

    def forget(self, name: str | None = None) -> None:
        """The file, or any of them, may differ from what was last written."""
        if name is None:
            self._saved.clear()
        else:
            self._saved.pop(name, None)

    def _news(self, names: Collection[str]) -> dict[str, Content]:
        # All lines of a file, or none: a file that was damaged is healed by the next write.
        news, writes = {}, self._logs.table.writes
        for name in names:
            saved = self._saved.get(name)
            if saved is not None and saved.writes == writes and name in _PUBLISHED:
                continue
            lines = self._lines(name)
            if saved is not None and saved.lines == lines:
                self._saved[name] = Content(saved.lines, writes)
            else:
                news[name] = Content(lines, writes)
        return news

    def _lines(self, name: str) -> Lines:
        """This worker's lines in each directory's checkpoint ``name``."""
        value = _VALUES[name]
        lines: dict[str, tuple[LocalLogDir, dict[TopicPartition, Offset]]]
        lines = {log_dir.path: (log_dir, {}) for log_dir in self._dirs if log_dir.error is None}
        for log in self._logs.by_slot.values():
            if log.log_dir in lines:
                lines[log.log_dir][1][log.key] = value(log)
        return list(lines.values())

    def _on_written(
        self, files: dict[str, Content], failures: list[tuple[LocalLogDir, OSError]]
    ) -> None:
        self.is_running = False
        for log_dir in self._dirs:
            log_dir.no_checkpoint_is_under_way()
        if not failures:
            self._saved.update(files)
        for log_dir, error in failures:
            if may_do_without(error):
                logger.warning(
                    "cannot write the checkpoints of %s for now: %s", log_dir.path, error
                )
            else:
                self._on_failure(log_dir.path, error)


def _write(files: Mapping[str, Content]) -> list[tuple[LocalLogDir, OSError]]:
    """Runs in the background thread; touches files only. The failures, by directory."""
    failures = []
    for name, content in files.items():
        for log_dir, values in content.lines:
            try:
                log_dir.write_checkpoint(name, values)
            except OSError as error:
                failures.append((log_dir, error))
    return failures
