"""Values of options: what is subscribed to, where reading starts or ends, offsets, durations.

Offsets have the JSON of Spark's Kafka connector, in options as in the offset log of a query. Every
refusal says what to write instead.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from kbroker.client.batches.offsets import EARLIEST as EARLIEST  # the type of an offset in options
from kbroker.client.batches.offsets import LATEST as LATEST
from kbroker.quantities import UNIT_MS

TopicPartition = tuple[str, int]
INT64_MAX = 2**63 - 1


class OptionError(ValueError):
    """An option is missing, contradicts another one or cannot be read."""


class LimitKind(Enum):
    """How a limit is specified."""

    EARLIEST = "earliest"
    LATEST = "latest"
    COMMITTED = "committed"
    OFFSETS = "offsets"
    TIMESTAMPS = "timestamps"
    TIMESTAMP = "timestamp"


@dataclass(frozen=True, slots=True)
class Limit:
    """The start or end of reading. values: offset (or LATEST, EARLIEST) or ms of each partition,
    for OFFSETS and TIMESTAMPS. timestamp: ms, for TIMESTAMP. latest_without_match: a time after the
    last record means LATEST; otherwise it is an error.
    """

    kind: LimitKind
    values: Mapping[TopicPartition, int] = field(default_factory=dict)
    timestamp: int = 0
    latest_without_match: bool = False

    @property
    def moves(self) -> bool:
        """Whether asking again later may give other offsets."""
        if self.kind is LimitKind.OFFSETS:
            return any(offset < 0 for offset in self.values.values())
        return True

    def describe(self) -> str:
        """The text that was written, in canonical form."""
        if self.kind is LimitKind.TIMESTAMP:
            return f"timestamp {self.timestamp}"
        if self.kind in (LimitKind.OFFSETS, LimitKind.TIMESTAMPS):
            return f"{self.kind.value} {format_offsets(self.values)}"
        return str(self.kind.value)


@dataclass(frozen=True, slots=True)
class TopicSubscription:
    """Which partitions: exactly one of the three is set."""

    topics: tuple[str, ...] = ()
    pattern: str = ""
    partitions: tuple[TopicPartition, ...] = ()

    def describe(self) -> str:
        """A line that describes it."""
        if self.pattern:
            return f"subscribePattern {self.pattern}"
        if self.topics:
            return f"subscribe {','.join(sorted(self.topics))}"
        return "assign " + ",".join(f"{topic}-{part}" for topic, part in sorted(self.partitions))


def parse_duration_ms(name: str, text: str) -> int:
    """``500``, ``500ms``, ``30s``, ``15m``, ``2h``, ``1d``; a bare number counts ms."""
    match = re.fullmatch(r"([0-9]+)(us|ms|s|m|min|h|d)?", text.strip().lower())
    if match is None:
        raise OptionError(f"{name} is {text!r}: write a duration such as 30s, 15m or 500ms")
    unit = match[2] or "ms"
    return int(match[1]) // 1000 if unit == "us" else int(match[1]) * UNIT_MS[unit]


def parse_partitions(text: str) -> tuple[TopicPartition, ...]:
    """``{"topicA":[0,1]}``. Raises OptionError."""
    what = f'assign is {text!r}: write partitions such as {{"topicA":[0,1],"topicB":[2]}}'
    try:
        parsed = json.loads(text)
        partitions = [(topic, _as_int(part)) for topic, parts in parsed.items() for part in parts]
    except (ValueError, AttributeError, TypeError) as error:
        raise OptionError(what) from error
    if not partitions or any(part < 0 for _, part in partitions):
        raise OptionError(what)
    return tuple(dict.fromkeys(partitions))


def parse_offsets(text: str, name: str) -> dict[TopicPartition, int]:
    """``{"topicA":{"0":23,"1":-1}}``, offsets or timestamps. Raises OptionError."""
    try:
        return offsets_from_json(json.loads(text))
    except (ValueError, AttributeError, TypeError) as error:
        example = '{"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}'
        if name.endswith("Timestamp"):
            example = '{"topicA":{"0":1700000000000,"1":1700000060000}}'
        also = {"startingOffsets": "earliest, latest or ", "endingOffsets": "latest or "}
        words = also.get(name, "")
        raise OptionError(f"{name} is {text!r}: write {words}JSON such as {example}") from error


def offsets_from_json(parsed: Mapping[str, Mapping[str, int]]) -> dict[TopicPartition, int]:
    """Raises ValueError, AttributeError or TypeError if it has another structure."""
    return {
        (topic, _as_int(partition)): _as_int(offset)
        for topic, offsets in parsed.items()
        for partition, offset in offsets.items()
    }


def offsets_to_json(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    """By topic, then partition, as in the offset log of Spark's connector."""
    nested: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        nested.setdefault(topic, {})[str(partition)] = offset
    return nested


def format_offsets(offsets: Mapping[TopicPartition, int]) -> str:
    """``{"topic":{"0":123}}``, sorted and without blanks."""
    return json.dumps(offsets_to_json(offsets), separators=(",", ":"), ensure_ascii=False)


def _as_int(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"{value!r} is not a whole number")
    if abs(int(value)) > INT64_MAX:
        raise ValueError(f"{value} is above {INT64_MAX}")
    return int(value)


def names(partitions: Iterable[TopicPartition]) -> str:
    """Sorted, by commas."""
    return ", ".join(f"{topic}-{partition}" for topic, partition in sorted(partitions))
