"""Which topics a consumer reads, and how many streams it has for them."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from kbroker.client.errors import SettingRefused
from kbroker.internal_topics import OFFSETS_TOPIC

STATIC, WHITE_LIST, BLACK_LIST = "static", "white_list", "black_list"
# COMPAT: consumers of 0.8.2 know no other one, and all of a group must count the same topics.
INTERNAL = frozenset({OFFSETS_TOPIC})


class TopicFilter:
    """A regular expression for whole names of topics; ``,`` is ``|``, as in the mirror maker.

    Raises SettingRefused if it is none.
    """

    pattern = ""

    def __init__(self, regex: str) -> None:
        # COMPAT: consumers of 0.8.2 compare what they have registered in this form.
        self.regex = regex.strip().replace(",", "|").replace(" ", "").strip("\"'")
        try:
            self._compiled = re.compile(self.regex)
        except re.error as error:
            raise SettingRefused(
                f"{type(self).__name__}({regex!r})", f"no regular expression: {error}"
            ) from error

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.regex!r})"

    def matches(self, topic: str) -> bool:
        return self._compiled.fullmatch(topic) is not None

    def allows(self, topic: str, exclude_internal: bool = True) -> bool:
        """Whether the topic is read."""
        raise NotImplementedError


class Whitelist(TopicFilter):
    """The topics that match."""

    pattern = WHITE_LIST

    def allows(self, topic: str, exclude_internal: bool = True) -> bool:
        return self.matches(topic) and not (exclude_internal and topic in INTERNAL)


class Blacklist(TopicFilter):
    """The topics that do not match."""

    pattern = BLACK_LIST

    def allows(self, topic: str, exclude_internal: bool = True) -> bool:
        return not self.matches(topic) and not (exclude_internal and topic in INTERNAL)


class StreamSubscription(NamedTuple):
    """streams: topic -> their number, or with a filter that of all topics under ""."""

    streams: Mapping[str, int]
    filter: TopicFilter | None = None

    def topics(self, known: Iterable[str], exclude_internal: bool) -> dict[str, int]:
        """Topic -> number of streams. known: all topics that there are."""
        if self.filter is None:
            return dict(self.streams)
        count = self.streams[""]
        return {name: count for name in known if self.filter.allows(name, exclude_internal)}

    def node(self, now: float | None = None) -> bytes:
        """What a consumer registers."""
        by_name = self.streams if self.filter is None else {self.filter.regex: self.streams[""]}
        row = {
            "version": 1,
            "subscription": dict(by_name),
            "pattern": STATIC if self.filter is None else self.filter.pattern,
            "timestamp": str(int((time.time() if now is None else now) * 1000)),
        }
        return json.dumps(row, separators=(",", ":"), ensure_ascii=False).encode()

    @classmethod
    def of_node(cls, data: bytes) -> StreamSubscription:
        """Raises ValueError. COMPAT: 0.7 has registered ``{topic: streams}``."""
        row: Any = json.loads(data)
        if not isinstance(row, dict):
            raise ValueError(f"not a subscription: {row!r}")
        counts = row.get("subscription", row)
        pattern = row.get("pattern", STATIC)
        if not isinstance(counts, dict) or not all(
            isinstance(count, int) and count >= 0 for count in counts.values()
        ):
            raise ValueError(f"not numbers of streams: {counts!r}")
        if pattern == STATIC:
            return cls(counts)
        if pattern not in (WHITE_LIST, BLACK_LIST) or len(counts) != 1:
            raise ValueError(f"not a filter: {row!r}")
        ((regex, count),) = counts.items()
        made = Whitelist(regex) if pattern == WHITE_LIST else Blacklist(regex)
        return cls({"": count}, made)
