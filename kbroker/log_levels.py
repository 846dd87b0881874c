"""The levels of this broker's loggers, as clients see and change them (KIP-412).

Names and levels are Kafka's for Python's loggers: ``root`` and modules of this broker, and WARN and
FATAL. What was changed is in a file of the run, which the controller process writes and all
processes follow; it is gone when the broker stops.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Mapping

ROOT = "root"
OURS = "kbroker"
TRACE = 5
LEVELS = {
    "TRACE": TRACE,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
}
FILE_NAME = "log-levels.json"
# BOUND: loggers whose levels are changed.
CHANGED_MAX = 1_000


def names() -> list[str]:
    """All loggers that this process has."""
    known = logging.getLogger().manager.loggerDict
    ours = (
        name
        for name, logger in known.items()
        if isinstance(logger, logging.Logger) and name.partition(".")[0] == OURS
    )
    return [ROOT, *sorted(ours)]


def exists(name: str) -> bool:
    """Whether a process of this broker may have such a logger."""
    if name == ROOT or name in logging.getLogger().manager.loggerDict:
        return name == ROOT or name.partition(".")[0] == OURS
    first, *others = name.split(".")
    if first != OURS or not all(map(str.isidentifier, others)):
        return False
    # Without importing it, or its packages.
    place = os.path.join(os.path.dirname(__file__), *others)
    return os.path.isdir(place) or os.path.isfile(f"{place}.py")


def level_of(name: str) -> str:
    """The level that counts for a logger, by Kafka's name."""
    number = _logger(name).getEffectiveLevel()
    return next((level for level, own in LEVELS.items() if own >= number), "FATAL")


def _logger(name: str) -> logging.Logger:
    return logging.getLogger(None if name == ROOT else name)


class LogLevels:
    """Those of one process. ``follow`` is called now and then."""

    def __init__(self, runtime_dir: str) -> None:
        self._path = os.path.join(runtime_dir, FILE_NAME)
        self._seen = (0, 0)
        self._applied: dict[str, str] = {}
        self._before: dict[str, int] = {}  # what those had

    def follow(self) -> None:
        """Apply what the file says, if it has changed."""
        try:
            status = os.stat(self._path)
        except OSError:
            return
        seen = status.st_mtime_ns, status.st_ino
        if seen == self._seen:
            return
        try:
            with open(self._path, encoding="utf-8") as file:
                self._apply(json.load(file))
        except (OSError, ValueError):
            return  # the next look finds all of it
        self._seen = seen

    def _apply(self, levels: Mapping[str, str]) -> None:
        for name in self._applied.keys() - levels.keys():
            _logger(name).setLevel(self._before.pop(name))
        for name, level in levels.items():
            logger = _logger(name)
            self._before.setdefault(name, logger.level)
            logger.setLevel(LEVELS[level])
        self._applied = dict(levels)

    def change(self, changes: Iterable[tuple[str, str | None]]) -> None:
        """Change levels in all processes; None takes a change back. For one process only: it owns
        the file. Raises OSError.
        """
        self.follow()
        levels = dict(self._applied)
        for name, level in changes:
            if level is None:
                levels.pop(name, None)
            else:
                levels[name] = level
        with open(self._path + ".tmp", "w", encoding="utf-8") as file:
            json.dump(dict(list(levels.items())[:CHANGED_MAX]), file)
        os.rename(self._path + ".tmp", self._path)
        self.follow()
