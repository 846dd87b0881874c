"""Log lines on stderr: ``time LEVEL [process] message``, one record per line, from every process,
or the same as JSON.

``setup`` runs once in the supervisor. A child inherits it and sets its own name with
``name_process``. Nothing here may be called from a signal handler.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import TextIO

from kbroker.wording import shown, shown_lines

ROOT = "kbroker"
ALL_AREAS = "all"

# BOUND: kinds of message a limiter remembers; above it the oldest is dropped and may be logged
# again early.
LIMITER_KEYS_MAX = 256


# BOUND: what a pipe takes in one piece (PIPE_BUF), if most characters are ASCII.
PIPE_CHARS_MAX = 3_000

# BOUND: words of a message in the name of its event.
EVENT_WORDS_MAX = 8
# BOUND: messages whose event names are remembered.
EVENTS_MAX = 1_000
_PLACEHOLDER = re.compile(r"%(?:\([^)]*\))?[-+ #0]*\d*(?:\.\d+)?[a-zA-Z%]")
_WORD = re.compile(r"[a-z0-9]+")
TEXT, JSON = "text", "json"

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


class JsonFormatter(logging.Formatter):
    """Writes a record as a JSON object in one line.

    ``event`` is the same for all records of a kind. ``args`` has what makes a record differ from
    others of its kind, by name if the message names it.
    """

    def __init__(self, process: str) -> None:
        super().__init__()
        self.process = process
        self._events: dict[tuple[str, str], str] = {}

    def format(self, record: logging.LogRecord) -> str:
        import json  # only this format needs it

        clock = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        document: dict[str, object] = {
            "ts": f"{clock}.{int(record.msecs):03d}Z",
            "level": record.levelname,
            "process": self.process,
            "pid": os.getpid(),
            "logger": record.name,
            "event": getattr(record, "event", None) or self._event(record.name, str(record.msg)),
            "message": message_of(record),
        }
        if isinstance(record.args, Mapping):
            document["args"] = {key: _plain(value) for key, value in record.args.items()}
        elif record.args:
            document["args"] = list(map(_plain, record.args))
        if record.exc_info:
            document["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            document["stack"] = record.stack_info
        return json.dumps(document)

    def _event(self, logger: str, template: str) -> str:
        known = self._events.get((logger, template))
        if known is None:
            if len(self._events) >= EVENTS_MAX:
                self._events.clear()
            known = self._events[logger, template] = event_name(logger, template)
        return known


def event_name(logger: str, template: str) -> str:
    """The name of a kind of record: its module, and the first words of its message that are always
    the same. A log call whose message has no such words gives a name itself, as ``extra["event"]``.
    """
    words = _WORD.findall(_PLACEHOLDER.sub(" ", template).lower().replace("'", ""))
    return f"{logger.rpartition('.')[2]}.{'-'.join(words[:EVENT_WORDS_MAX])}"


def _plain(value: object) -> object:
    safe = safe_argument(value)
    return str(safe) if isinstance(safe, Safe) else safe


def message_of(record: logging.LogRecord) -> str:
    """Like ``record.getMessage``, with safe arguments."""
    arguments = record.args
    if not arguments:
        return str(record.msg)
    if isinstance(arguments, Mapping):
        return str(record.msg) % {key: safe_argument(value) for key, value in arguments.items()}
    return str(record.msg) % tuple(map(safe_argument, arguments))


class LineHandler(logging.StreamHandler[TextIO]):
    """Writes each line by itself, or those of ``together`` a few thousand bytes at a time."""

    def __init__(self) -> None:
        super().__init__()
        self._kept: list[str] | None = None

    def emit(self, record: logging.LogRecord) -> None:
        if self._kept is None:
            super().emit(record)
            return
        try:
            self._kept.append(self.format(record) + self.terminator)
        except Exception:
            self.handleError(record)

    def keep_lines(self) -> None:
        """Keep lines until ``write_kept``."""
        with self._lines_lock():
            self._kept = []

    def write_kept(self) -> None:
        """Write what was kept."""
        with self._lines_lock():
            kept, self._kept = self._kept or [], None
            with suppress(OSError, ValueError):  # as ``emit``, which has told of it once
                for text in _joined(kept):
                    self.stream.write(text)
                    self.flush()

    def _lines_lock(self) -> AbstractContextManager[object]:
        return self.lock if self.lock is not None else nullcontext()


def _joined(lines: Iterable[str]) -> Iterator[str]:
    """The lines, some at a time, as far as a pipe takes them in one piece."""
    text = ""
    for line in lines:
        if text and len(text) + len(line) > PIPE_CHARS_MAX:
            yield text
            text = ""
        text += line
    if text:
        yield text


@contextmanager
def together() -> Iterator[None]:
    """For what logs a line for each of hundreds of partitions, in one go: to write each by itself
    costs more than all else that is done for a partition, as all processes of a broker write to one
    file. Not for what waits.
    """
    handlers = [h for h in logging.getLogger().handlers if isinstance(h, LineHandler)]
    for handler in handlers:
        handler.keep_lines()
    try:
        yield
    finally:
        for handler in handlers:
            handler.write_kept()


# More lines of one kind than this become one, with as many of them as a sample.
EACH_MAX, SAMPLE = 10, 3
SAMPLE_CHARS = 600


class ManyLines:
    """Lines of which there may be one for each of thousands of partitions: more than EACH_MAX of a
    kind become one line with their count and a sample, and each of them is logged at DEBUG.
    """

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._kinds: dict[tuple[int, str], list[tuple[object, ...]]] = {}

    def say(self, level: int, text: str, *values: object) -> None:
        """As ``Logger.log``. Lines of one level and text are of one kind."""
        self._kinds.setdefault((level, text), []).append(values)

    def write(self) -> None:
        """Log what was said."""
        if not self._kinds:  # in each turn of an io worker
            return
        kinds, self._kinds = self._kinds, {}
        for (level, text), all_values in kinds.items():
            is_many = len(all_values) > EACH_MAX
            if is_many:
                sample = "; ".join(text % values for values in all_values[:SAMPLE])
                self._logger.log(
                    level, "%d changes like these (each at DEBUG): %s", len(all_values),
                    shown(sample, SAMPLE_CHARS),
                )  # fmt: skip
            for values in all_values:
                self._logger.log(logging.DEBUG if is_many else level, text, *values)


@contextmanager
def many_lines(logger: logging.Logger) -> Iterator[ManyLines]:
    """The lines of one change. Not for what waits: see ``together``."""
    lines = ManyLines(logger)
    with together():
        try:
            yield lines
        finally:
            lines.write()


def setup(process: str, debug_areas: tuple[str, ...] = (), level: int = logging.INFO) -> None:
    """Send log lines to stderr.

    An area is a package or module below ``kbroker`` ("storage", "ipc.rpc"), or "all".
    """
    handler = LineHandler()
    handler.setFormatter(LineFormatter(process))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    # No line shows these, and to find them out is half of its cost.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    for area in debug_areas:
        name = ROOT if area == ALL_AREAS else f"{ROOT}.{area}"
        logging.getLogger(name).setLevel(logging.DEBUG)


def use_format(name: str) -> None:
    """Write lines as TEXT or JSON from now on; called once the configuration is known."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler.formatter, LineFormatter) and name == JSON:
            handler.setFormatter(JsonFormatter(handler.formatter.process))


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
        if isinstance(handler.formatter, LineFormatter | JsonFormatter):
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
