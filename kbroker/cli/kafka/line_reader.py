"""Lines as records, as ``kafka-console-producer`` reads them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple


class LineReaderError(Exception):
    """A line, or a setting of the reader, in the words of Kafka's reader."""


class LineRecord(NamedTuple):
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


class LineReader:
    """Settings: parse.key, key.separator, parse.headers, headers.delimiter, headers.separator (a
    regular expression), headers.key.separator, ignore.error, null.marker. Raises LineReaderError.
    """

    def __init__(self, settings: Mapping[str, str]) -> None:
        def yes(name: str) -> bool:
            return settings.get(name, "").strip().lower() == "true"

        self._parse_key, self._parse_headers = yes("parse.key"), yes("parse.headers")
        self._ignore = yes("ignore.error")
        self._key_separator = settings.get("key.separator", "\t")
        self._delimiter = settings.get("headers.delimiter", "\t")
        self._separator = settings.get("headers.separator", ",")
        self._header_key = settings.get("headers.key.separator", ":")
        self._null = settings.get("null.marker")
        self._number = 0
        self._check()
        try:
            self._split = re.compile(self._separator)
        except re.error as error:
            raise LineReaderError(f"headers.separator: {error}") from error

    def _check(self) -> None:
        named = {
            "headers.delimiter": self._delimiter,
            "headers.separator": self._separator,
            "headers.key.separator": self._header_key,
        }
        names = list(named)
        for at, name in enumerate(names):
            for other in names[at + 1 :]:
                if named[name] == named[other]:
                    raise LineReaderError(f"{name} and {other} may not be equal")
        for name in ("key.separator", "headers.separator", "headers.delimiter",
                     "headers.key.separator"):  # fmt: skip
            if named.get(name, self._key_separator) == self._null:
                raise LineReaderError(f"null.marker and {name} may not be equal")

    @property
    def is_plain(self) -> bool:
        """Whether a line is a value, whatever is in it."""
        return not (self._parse_key or self._parse_headers or self._null is not None)

    def record(self, line: str) -> LineRecord:
        """Raises LineReaderError."""
        self._number += 1
        headers = self._part(self._parse_headers, line, 0, self._delimiter, "headers delimiter")
        at = 0 if headers is None else len(headers) + len(self._delimiter)
        key = self._part(self._parse_key, line, at, self._key_separator, "key separator")
        at += 0 if key is None else len(key) + len(self._key_separator)
        rows: list[tuple[str, bytes | None]] = []
        if headers is not None and headers != self._null:
            rows = [self._header(pair) for pair in self._pairs(headers)]
        return LineRecord(self._bytes(key), self._bytes(line[at:]), rows)

    def _bytes(self, text: str | None) -> bytes | None:
        return None if text is None or text == self._null else text.encode("utf-8", "replace")

    def _part(self, enabled: bool, line: str, at: int, separator: str, what: str) -> str | None:
        if not enabled:
            return None
        end = line.find(separator, at)
        if end >= 0:
            return line[at:end]
        if self._ignore:
            return None
        raise LineReaderError(f"No {what} found on line number {self._number}: '{line}'")

    def _pairs(self, headers: str) -> list[str]:
        """Empty ones at the end do not count, as in Java."""
        pairs = self._split.split(headers)
        while len(pairs) > 1 and not pairs[-1]:
            pairs.pop()
        return pairs

    def _header(self, pair: str) -> tuple[str, bytes | None]:
        key, separator, value = pair.partition(self._header_key)
        if not separator:
            if self._ignore:
                return pair, None
            raise LineReaderError(
                f"No header key separator found in pair '{pair}' on line number {self._number}"
            )
        if key == self._null:
            raise LineReaderError(
                f"Header keys should not be equal to the null marker '{self._null}' as they can't "
                "be null"
            )
        return key, None if value == self._null else value.encode("utf-8", "replace")
