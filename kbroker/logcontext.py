"""Log lines on stderr: ``time LEVEL [process] message``, one record per line, from every process.

``setup`` runs once in the supervisor. A child inherits it and sets its own name with
``name_process``. Nothing here may be called from a signal handler.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping

from kbroker.wording import shown, shown_lines

ROOT = "kbroker"
ALL_AREAS = "all"

# BOUND: kinds of message a limiter remembers; above it the oldest is dropped and may be logged
# again early.
LIMITER_KEYS_MAX = 256


# BOUND: characters of an argument that is not plain text: an exception, a list.
OBJECT_CHARS_MAX = 2_000


class Whole(str):
    """Long text from the broker itself, which a log line shows in full."""

    __slots__ = ()


class Safe:
    """An argument of a log call that is made safe when it becomes text."""

    __slots__ = ("_value",)

    def __init__(self, value: object) -> None:
        self._value = value

    def __str__(self) -> str:
        return shown(str(self._value), OBJECT_CHARS_MAX)

    def __repr__(self) -> str:
        return shown(repr(self._value), OBJECT_CHARS_MAX)


def safe_argument(value: object) -> object:
    """An argument of a log call in a safe form. Most texts come from clients, or contain theirs:
    names, ids, values, reasons. So all are treated like that, and this is the only place that has
    to know.
    """
    if type(value) is str:
        return shown(value)
    if value is None or isinstance(value, (int, float)):
        return value
    if type(value) is Whole:
        return shown(value, len(value))
    return Safe(value)


class LineFormatter(logging.Formatter):
    """Writes a record as one line, in which no client can forge another.

    The lines of a traceback follow indented, so that a line starts with a time.
    """

    def __init__(self, process: str) -> None:
        super().__init__()
        self.process = process

    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.created))
        text = shown_lines(message_of(record))
        if record.exc_info:
            text += "\n" + shown_lines(self.formatException(record.exc_info))
        if record.stack_info:
            text += "\n" + record.stack_info
        text = text.replace("\n", "\n    ")
        millis = int(record.msecs)
        return f"{clock}.{millis:03d} {record.levelname} [{self.process}] {text}"


def message_of(record: logging.LogRecord) -> str:
    """Like ``record.getMessage``, with safe arguments."""
    arguments = record.args
    if not arguments:
        return str(record.msg)
    if isinstance(arguments, Mapping):
        return str(record.msg) % {key: safe_argument(value) for key, value in arguments.items()}
    return str(record.msg) % tuple(map(safe_argument, arguments))


def setup(process: str, debug_areas: tuple[str, ...] = (), level: int = logging.INFO) -> None:
    """Send log lines to stderr.

    An area is a package or module below ``kbroker`` ("storage", "ipc.rpc"), or "all".
    """
    handler = logging.StreamHandler()
    handler.setFormatter(LineFormatter(process))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for area in debug_areas:
        name = ROOT if area == ALL_AREAS else f"{ROOT}.{area}"
        logging.getLogger(name).setLevel(logging.DEBUG)


def is_area(area: str) -> bool:
    """Whether ``setup`` would find something below ``kbroker`` by that name."""
    import importlib.util  # only if debug areas are requested

    if area == ALL_AREAS:
        return True
    try:
        return importlib.util.find_spec(f"{ROOT}.{area}") is not None
    except ImportError:  # its parent does not exist, or is not a package
        return False


def name_process(process: str) -> None:
    """Set the process name for the following lines; called in a child after the fork."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler.formatter, LineFormatter):
            handler.formatter.process = process


class RateLimit:
    """Lets a kind of message through once per interval and counts the suppressed ones.

    ``count = limit.due(key)`` is 0 while the message must be dropped, else 1 plus the number
    dropped since the last one that went out.
    """

    def __init__(
        self, interval_s: float = 10.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._interval_s = interval_s
        self._clock = clock
        self._seen: dict[object, tuple[float, int]] = {}

    def due(self, key: object = None) -> int:
        """The number of occurrences to report now; 0 for none."""
        now = self._clock()
        last, dropped = self._seen.get(key, (-float("inf"), 0))
        if now - last < self._interval_s:
            self._seen[key] = (last, dropped + 1)
            return 0
        self._seen.pop(key, None)  # at the end of the order again: the oldest is the first
        if len(self._seen) >= LIMITER_KEYS_MAX:
            del self._seen[next(iter(self._seen))]
        self._seen[key] = (now, 0)
        return dropped + 1
