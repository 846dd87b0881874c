"""The output of the command: rows and findings on stdout, progress on stderr."""

from __future__ import annotations

import base64
import json
import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

from kbroker._ext.log.log_scan import PROGRESS_BYTES

Row = dict[str, Any]
"""Field -> value, in the order in which it is shown; values are those of JSON, or bytes."""

_MIB = 1 << 20
_PROGRESS_INTERVAL_S = 1.0
OK, NOTE, DAMAGE = "ok", "note", "damage"


class Output:
    """Prints as text or as JSON lines, and counts the damage that was reported."""

    __slots__ = ("_as_json", "_stream", "damage_count", "progress")

    def __init__(self, as_json: bool, progress: ScanProgress, stream: TextIO | None = None) -> None:
        self._as_json = as_json
        self._stream = stream or sys.stdout
        self.progress = progress
        self.damage_count = 0

    def file(self, path: str) -> None:
        """Announce the file of the following rows; JSON lines contain it."""
        if not self._as_json:
            self._print(f"Dumping {path}")

    def row(self, path: str, kind: str, row: Row, indent: str = "") -> None:
        if self._as_json:
            self._print(json.dumps({"file": path, "type": kind, **_for_json(row)}))
        else:
            fields = (f"{key}: {_for_text(value)}" for key, value in row.items())
            self._print(indent + " ".join(fields))

    def finding(self, path: str, level: str, text: str, **more: Any) -> None:
        """A finding about a file or directory; DAMAGE makes the command exit with 1."""
        self.damage_count += level == DAMAGE
        if self._as_json:
            self._print(json.dumps({"file": path, "level": level, "message": text, **more}))
        else:
            self._print(f"{path}: {level}: {text}")

    def _print(self, line: str) -> None:
        self.progress.clear()
        print(line, file=self._stream)


def _for_json(value: Any) -> Any:
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, dict):
        return {key: _for_json(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_for_json(part) for part in value]
    return value


def _for_text(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        value = value.decode("utf-8", "backslashreplace")
    if isinstance(value, str):
        # Data from a producer must not move the cursor of a terminal or fake lines.
        if value.isprintable():
            return value
        return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in value)
    if isinstance(value, list):
        return f"[{','.join(map(_for_text, value))}]"
    if isinstance(value, dict):
        return json.dumps(_for_json(value), ensure_ascii=False)
    return str(value)


class ScanProgress:
    """Shows the progress of a long walk about once a second; silent unless switched on."""

    __slots__ = ("_clock", "_done", "_enabled", "_in_place", "_next", "_shown", "_stream", "_total")

    def __init__(
        self,
        enabled: bool | None = None,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """enabled: None switches it on when ``stream`` (stderr) is a terminal."""
        self._stream = stream or sys.stderr
        self._in_place = self._stream.isatty()
        self._enabled = self._in_place if enabled is None else enabled
        self._clock = clock
        self._done = self._total = 0
        self._next = clock() + _PROGRESS_INTERVAL_S
        self._shown = False

    def start(self, total_bytes: int) -> None:
        self._total = total_bytes
        self._done = 0

    def walker(self, path: str, size: int) -> Callable[[], None]:
        """The callback for ``scan_segment``; ``finished`` does the rest."""
        walked = 0

        def advance() -> None:
            nonlocal walked
            walked += PROGRESS_BYTES
            self._show(path, self._done + min(walked, size))

        return advance

    def finished(self, path: str, size: int) -> None:
        self._done += size
        self._show(path, self._done)

    def _show(self, path: str, done: int) -> None:
        if not self._enabled or self._clock() < self._next:
            return
        self._next = self._clock() + _PROGRESS_INTERVAL_S
        share = 100 * done // self._total if self._total else 100
        text = f"{share:3d} % of {self._total / _MIB:,.0f} MiB, {path}"
        print(f"\r\x1b[K{text}" if self._in_place else text, end="" if self._in_place else "\n",
              file=self._stream, flush=True)  # fmt: skip
        self._shown = self._in_place

    def clear(self) -> None:
        """Make room for a line of output, or for the shell's prompt."""
        if self._shown:
            print("\r\x1b[K", end="", file=self._stream, flush=True)
            self._shown = False
