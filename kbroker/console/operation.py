"""What an operation of the API is: its path, what it takes, and the function that serves it.

Routes, checks and the OpenAPI document follow from these rows (``application``, ``openapi``).
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from kbroker.client.connections.cluster import Cluster
from kbroker.console.decoding import Decoding
from kbroker.console.local_broker import LocalBroker
from kbroker.console.problems import BadRequest

Row = TypeVar("Row")

INTEGER, TEXT, FLAG, INTEGERS, SETTINGS = "integer", "string", "boolean", "integers", "settings"
TEXTS = "strings"
LONG_MAX = (1 << 63) - 1
# BOUND: characters of a text in a query, and items of a list.
TEXT_CHARS_MAX = 4096
ITEMS_MAX = 10_000
CURSOR_CHARS_MAX = 100
_WHOLE = re.compile("-?[0-9]{1,19}")


@dataclass(frozen=True, slots=True)
class Parameter:
    """A value that an operation takes. kind: of the above. default: None leaves it out."""

    name: str
    kind: str
    text: str
    default: Any = None
    required: bool = False
    low: int = 0
    high: int = LONG_MAX
    one_of: tuple[str, ...] = ()
    length_min: int = 0
    length_max: int = TEXT_CHARS_MAX

    def read(self, given: str) -> Any:
        """The value in a query. Raises BadRequest."""
        if self.kind == FLAG:
            if given not in ("true", "false"):
                raise self._refused(given)
            return given == "true"
        if self.kind == INTEGER:
            return self._whole(given)
        if self.kind == INTEGERS:
            return self._all([self._whole(each) for each in given.split(",")])
        return self.check(given)

    def check(self, given: Any) -> Any:
        """A value of JSON, as it must be. Raises BadRequest."""
        kind = self.kind
        if kind == FLAG and isinstance(given, bool):
            return given
        if kind == INTEGER and isinstance(given, int) and not isinstance(given, bool):
            return self._whole(str(given))
        if kind == TEXT and (not self.one_of or given in self.one_of):
            return self._short(given)
        if kind == INTEGERS and isinstance(given, list):
            return self._all([self._whole(str(each)) for each in given])
        if kind == TEXTS and isinstance(given, list):
            return self._all([self._short(each) for each in given])
        if kind == SETTINGS and isinstance(given, dict):
            self._all([self._short(name) for name in given])
            return {
                name: None if each is None else self._short(each) for name, each in given.items()
            }
        raise self._refused(given)

    def _whole(self, given: str) -> int:
        if not _WHOLE.fullmatch(given) or not self.low <= int(given) <= self.high:
            raise self._refused(given)
        return int(given)

    def _short(self, given: Any) -> str:
        if not isinstance(given, str) or not self.length_min <= len(given) <= self.length_max:
            raise self._refused(given)
        try:
            given.encode()
        except UnicodeEncodeError:
            raise BadRequest(f"{self.name}: half of a surrogate pair is no character") from None
        return given

    def _all(self, found: list[Any]) -> list[Any]:
        if len(found) > ITEMS_MAX:
            raise BadRequest(f"{self.name}: {len(found)} items, at most {ITEMS_MAX}")
        return found

    def _refused(self, given: Any) -> BadRequest:
        shown = str(given)[:80]
        return BadRequest(f"{self.name}: {shown!r} is not allowed: {self.allowed}")

    @property
    def allowed(self) -> str:
        """In words."""
        if self.one_of:
            return ", ".join(self.one_of)
        if self.kind in (INTEGER, INTEGERS):
            bounds = (
                f"{self.low} or more" if self.high == LONG_MAX else f"{self.low} to {self.high}"
            )
            whole = "a whole number" if self.kind == INTEGER else "whole numbers"
            return f"{whole}, {bounds}"
        shortest = f"{self.length_min} to" if self.length_min else "at most"
        return {
            FLAG: "true or false",
            TEXT: f"text of {shortest} {self.length_max} characters",
            TEXTS: f"a list of texts of at most {self.length_max} characters",
            SETTINGS: "an object of names and texts; null unsets",
        }[self.kind]


class Asked(NamedTuple):
    """A request that was checked. values: of path, query and body, with defaults. decoding: None
    without a schema registry. user: None of who has not logged in.
    """

    cluster: Cluster
    broker: LocalBroker
    values: Mapping[str, Any]
    decoding: Decoding | None = None
    user: str | None = None


def paging(rows: int = 100, most: int = 500) -> tuple[Parameter, Parameter, Parameter]:
    """Parameters for which rows a response has; see ``page_of``. rows: if it is not said.

    BOUND: most, of rows.
    """
    return (
        Parameter("limit", INTEGER, "Rows of the page.", rows, low=1, high=most),
        Parameter("skip", INTEGER, "Rows before the page.", 0),
        Parameter(
            "cursor", TEXT, "The next_cursor of the page before; then without skip.", "",
            length_max=CURSOR_CHARS_MAX,
        ),
    )  # fmt: skip


def page_of(
    rows: Sequence[Row], values: Mapping[str, Any], name: Callable[[Row], str] = str
) -> tuple[Sequence[Row], str | None]:
    """The rows that the parameters of ``paging`` ask for, and the cursor of the next page: None
    after the last one. name: of a row; a page begins behind the last row of the one before, also if
    others have come or gone. Raises BadRequest.
    """
    first = values["skip"]
    if values["cursor"]:
        if first:
            raise BadRequest("either skip or cursor")
        first = _place_of(values["cursor"], rows, name)
    page = rows[first : first + values["limit"]]
    end = first + len(page)
    return page, _cursor(end, name(page[-1])) if page and end < len(rows) else None


def _cursor(end: int, name: str) -> str:
    """Behind the row of this name, which is the last one of so many."""
    document = json.dumps([end, zlib.crc32(name.encode("utf-8", "replace"))]).encode()
    return base64.urlsafe_b64encode(document).decode().rstrip("=")


def _place_of(cursor: str, rows: Sequence[Row], name: Callable[[Row], str]) -> int:
    try:
        padded = cursor.encode("ascii") + b"=" * (-len(cursor) % 4)
        end, wanted = json.loads(base64.urlsafe_b64decode(padded))
        if not (isinstance(end, int) and isinstance(wanted, int) and 0 < end <= LONG_MAX):
            raise ValueError(cursor)
    except (ValueError, TypeError, RecursionError):
        raise BadRequest("cursor: this is none that a page of this list has told") from None

    def is_it(at: int) -> bool:
        return zlib.crc32(name(rows[at]).encode("utf-8", "replace")) == wanted

    if end <= len(rows) and is_it(end - 1):
        return end
    # Rows before it have come or gone; or it has, and then nobody knows better.
    return next((at + 1 for at in range(len(rows)) if is_it(at)), min(end, len(rows)))


@dataclass(frozen=True, slots=True)
class Operation:
    """path: below ``/api/v1``, with the names of its parameters in braces. serve: returns what
    becomes JSON; raises Problem, ClientError. answer: the typed dictionary that it is. needs: the
    right that a user must have, in words.
    """

    method: str
    path: str
    summary: str
    serve: Callable[[Asked], Mapping[str, Any]]
    answer: type[Any]
    query: Sequence[Parameter] = ()
    body: Sequence[Parameter] = ()
    needs: str = ""

    def values(self, path: Mapping[str, str], query: Sequence[tuple[str, str]]) -> dict[str, Any]:
        """What path and query give. Raises BadRequest for what the operation does not take."""
        found: dict[str, Any] = dict(path)
        by_name = {each.name: each for each in self.query}
        for name, value in query:
            if name not in by_name:
                takes = ", ".join(by_name) or "no parameters"
                raise BadRequest(f"unknown parameter {name[:80]!r}; this path takes {takes}")
            if name in found:
                raise BadRequest(f"{name} is given twice")
            found[name] = by_name[name].read(value)
        return self._complete(found, self.query)

    def body_values(self, document: Any) -> dict[str, Any]:
        """What a JSON document gives. Raises BadRequest."""
        if not isinstance(document, dict):
            raise BadRequest("the body must be a JSON object")
        by_name = {each.name: each for each in self.body}
        found = {}
        for name, value in document.items():
            if name not in by_name:
                raise BadRequest(
                    f"unknown member {name[:80]!r} in the body; allowed: {', '.join(by_name)}"
                )
            if value is not None:
                found[name] = by_name[name].check(value)
        return self._complete(found, self.body)

    @staticmethod
    def _complete(found: dict[str, Any], rows: Sequence[Parameter]) -> dict[str, Any]:
        for each in rows:
            if each.name not in found:
                if each.required:
                    raise BadRequest(f"{each.name} is missing: {each.allowed}")
                found[each.name] = each.default
        return found
