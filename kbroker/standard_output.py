"""Standard output that cannot be written: a closed pipe, a full disk.

It ends a command as Ctrl-C does, and is no Exception: what a command does about its own files and
connections must not take it for one of these.
"""

from __future__ import annotations

import io
import os
import sys
from errno import EBADF

_FD = 1
_forgotten = False


class OutputLost(BaseException):
    """The message is one line for stderr."""


class _Raw(io.FileIO):
    def write(self, data: object) -> int:
        if _forgotten:
            return len(data)  # type: ignore[arg-type]
        try:
            return super().write(data)  # type: ignore[arg-type]
        except OSError as error:
            raise OutputLost(f"cannot write to standard output: {error.strerror}") from None


class _Closed(io.RawIOBase):
    """Where the command was started without standard output (``>&-``)."""

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        if _forgotten:
            return len(data)  # type: ignore[arg-type]
        raise OutputLost(f"cannot write to standard output: {os.strerror(EBADF)}")


def guard_stdout() -> None:
    """From now on, whatever fails to be written there raises OutputLost."""
    stream = sys.stdout
    if stream is None:
        # Files that are opened must not take the place of standard output.
        while os.open(os.devnull, os.O_RDWR) < _FD:
            pass
        sys.stdout = io.TextIOWrapper(io.BufferedWriter(_Closed()), encoding="utf-8")
        return
    stream.flush()
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(_Raw(_FD, "w", closefd=False)),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=bool(stream.line_buffering),
    )


def forget_stdout() -> None:
    """What is left to be written is not, so that the interpreter's end does not fail for it."""
    global _forgotten
    _forgotten = True  # also for the end of the stream that is replaced, which Python 3.13 tells of
    sys.stdout = open(os.devnull, "w", encoding="utf-8")
