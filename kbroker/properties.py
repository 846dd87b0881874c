"""Reads Java .properties text.

A line is a key, a separator (``=``, ``:`` or white space) and a value. Lines that start with ``#``
or ``!`` are comments; a backslash at the end of a line joins the next one; ``\\t \\n \\r \\f
\\uXXXX`` are escapes and a backslash before any other character stands for that character.
Source: the documented format of java.util.Properties.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator

# BOUND: bytes read from a file, which may be endless.
BYTES_MAX = 1 << 20
_WHITE_SPACE = " \t\f"
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_HEX = frozenset("0123456789abcdefABCDEF")


class PropertiesError(ValueError):
    """The text is not in the properties format; the message names the line."""


def parse_properties(text: str) -> list[tuple[str, str]]:
    """All (key, value) pairs in order, a key that is set twice appearing twice.

    Raises PropertiesError for a broken ``\\uXXXX`` escape, the only thing the format forbids.
    """
    return [_split(line, number) for number, line in _logical_lines(text)]


def read_properties(path: str, regular_only: bool = False) -> list[tuple[str, str]]:
    """The pairs of a file. UTF-8, or Latin-1 (Java's default) if the bytes are not UTF-8.

    regular_only: never wait for somebody to write, as into a FIFO or a terminal.
    Raises OSError if it cannot be read, PropertiesError if it is not in the format.
    """
    with open(path, "rb", opener=without_waiting if regular_only else None) as file:
        if regular_only and not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "Not a regular file", path)
        data = file.read(BYTES_MAX + 1)
    if len(data) > BYTES_MAX:
        raise OSError(errno.EFBIG, f"More than {BYTES_MAX} bytes in a properties file", path)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = data.decode("latin-1")
    return parse_properties(text)


def without_waiting(path: str, flags: int) -> int:
    """An opener."""
    return os.open(path, flags | os.O_NONBLOCK)


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines with continuations joined, comments and blank lines dropped, each with its number."""
    joined: str | None = None
    first_number = 0
    natural_lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    for number, natural in enumerate(natural_lines, 1):
        line = natural.lstrip(_WHITE_SPACE)
        if joined is None:
            if not line or line[0] in "#!":
                continue
            joined, first_number = "", number
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2:
            joined += line[:-1]
        else:
            yield first_number, joined + line
            joined = None
    if joined is not None:
        yield first_number, joined


def _split(line: str, number: int) -> tuple[str, str]:
    end = 0
    while end < len(line) and line[end] not in "=: \t\f":
        end += 2 if line[end] == "\\" else 1
    end = min(end, len(line))
    rest = line[end:].lstrip(_WHITE_SPACE)
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(_WHITE_SPACE)
    return _unescape(line[:end], number), _unescape(rest, number)


def _unescape(text: str, number: int) -> str:
    if "\\" not in text:
        return text
    out = []
    position = 0
    while position < len(text):
        char = text[position]
        position += 1
        if char != "\\" or position == len(text):
            out.append(char)
            continue
        char = text[position]
        position += 1
        if char == "u":
            digits = text[position : position + 4]
            if len(digits) != 4 or not _HEX.issuperset(digits):
                raise PropertiesError(f"line {number}: \\u needs four hexadecimal digits")
            out.append(chr(int(digits, 16)))
            position += 4
        else:
            out.append(_ESCAPES.get(char, char))
    return "".join(out)
