"""Parses the options, which the user writes as strings, and finds unknown ones.

Names are case-insensitive. What one option means beside another is said in ``options``, but for
those that are two ways to write the same: subscriptions, and where reading starts or ends.
"""

from __future__ import annotations

import difflib
import logging
import re
import warnings
from collections.abc import Mapping

from kbroker.spark.options.kafka_settings import doubt, wrong_value
from kbroker.spark.options.option_table import BY_NAME
from kbroker.spark.options.option_values import (
    EARLIEST,
    INT64_MAX,
    Limit,
    LimitKind,
    OptionError,
    TopicSubscription,
    names,
    parse_duration_ms,
    parse_offsets,
    parse_partitions,
)

logger = logging.getLogger(__name__)

KAFKA_PREFIX = "kafka."
# Spark adds these on its own.
_OF_SPARK = {"path", "queryname", "paths"}
_STRATEGIES = ("assign", "subscribe", "subscribePattern")


class GivenOptions:
    """The options of a reader or writer. Methods raise OptionError."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._given = {name.lower(): (name, str(value)) for name, value in options.items()}

    def has(self, name: str) -> bool:
        return name.lower() in self._given

    def text(self, name: str) -> str | None:
        """The value; None if it is missing or blank."""
        entry = self._given.get(name.lower())
        return (entry[1].strip() or None) if entry else None

    def named(self, name: str) -> str | None:
        """A name; None if it is missing. A blank one is rejected: most likely a variable was not
        set.
        """
        text = self.text(name)
        if text is None and self.has(name):
            raise OptionError(f"{name} is blank: write a name, or leave the option out")
        return text

    def choice(self, name: str, *words: str) -> str:
        """One of the words; the first if it is missing. Blank is an error."""
        if not self.has(name):
            return words[0]
        text = (self.text(name) or "").lower()
        if text not in words:
            said = f"{', '.join(words[:-1])} or {words[-1]}"
            raise OptionError(f"{name} is {text!r}: write {said}")
        return text

    def boolean(self, name: str, default: bool) -> bool:
        if not self.has(name):
            return default
        text = self.text(name) or ""
        if text.lower() not in ("true", "false"):
            raise OptionError(f"{name} is {text!r}: write true or false")
        return text.lower() == "true"

    def integer(self, name: str, default: int | None = None) -> int | None:
        if not self.has(name):
            return default
        text = self.text(name) or ""
        if not re.fullmatch(r"[+-]?[0-9]+", text):
            raise OptionError(f"{name} is {text!r}: write a whole number")
        if abs(int(text)) > INT64_MAX:
            raise OptionError(f"{name} is {text}: write a number of at most {INT64_MAX}")
        return int(text)

    def positive(self, name: str, default: int | None = None) -> int | None:
        value = self.integer(name, default)
        if value is not None and value <= 0:
            raise OptionError(f"{name} is {value}, but must be positive: write 1 or more")
        return value

    def count(self, name: str, default: int) -> int:
        value = self.integer(name, default)
        if value is None or value < 0:
            raise OptionError(f"{name} is {value}, but must not be negative: write 0 or more")
        return value

    def duration_ms(self, name: str, default: int) -> int:
        return parse_duration_ms(name, self.text(name) or "") if self.has(name) else default

    def seconds(self, name: str, default: float) -> float:
        """A duration, in seconds."""
        return self.duration_ms(name, round(default * 1000)) / 1000

    def bootstrap(self, client: str) -> str:
        servers = self.text("kafka.bootstrap.servers")
        if servers:
            return servers
        if self.has("bootstrap.servers"):
            raise OptionError(
                "bootstrap.servers is not an option: write kafka.bootstrap.servers instead"
            )
        raise OptionError(
            "kafka.bootstrap.servers must be specified for the"
            f' {client}: write .option("kafka.bootstrap.servers", "host:9092")'
        )

    def kafka_settings(self, refused: Mapping[str, str]) -> dict[str, str]:
        """Client configs without the prefix ``kafka.``; refused: config to what to write
        instead.
        """
        settings: dict[str, str] = {}
        for lower, (name, value) in self._given.items():
            if not lower.startswith(KAFKA_PREFIX):
                continue
            # Spark may have lower-cased the name; Kafka's own names are lower case.
            setting = lower[len(KAFKA_PREFIX) :]
            if setting in refused:
                raise OptionError(f"{name} is not supported: {refused[setting]}")
            if (said := doubt(setting, KAFKA_PREFIX)) is not None:
                logger.warning("%s", said)
            if (wrong := wrong_value(setting, value)) is not None:
                raise OptionError(f"{KAFKA_PREFIX}{wrong}")
            settings[setting] = value
        settings.pop("bootstrap.servers", None)
        return settings

    def subscription(self) -> TopicSubscription:
        named = [name for name in _STRATEGIES if self.has(name)]
        if not named:
            raise OptionError(
                "no topics are given: write exactly one of subscribe, subscribePattern and assign"
            )
        if len(named) > 1:
            raise OptionError(
                f"{' and '.join(named)} are given: write only one of subscribe, subscribePattern"
                " and assign"
            )
        text = self.text(named[0]) or ""
        if named[0] == "assign":
            return TopicSubscription(partitions=parse_partitions(text))
        if named[0] == "subscribe":
            topics = tuple(dict.fromkeys(t.strip() for t in text.split(",") if t.strip()))
            if not topics:
                raise OptionError("subscribe names no topic: write names separated by commas")
            return TopicSubscription(topics=topics)
        if not text:
            raise OptionError("subscribePattern is empty: write a regular expression")
        try:
            # Python warns of patterns that mean something else in Java: [a[bc]] and [a-z&&[^b]].
            with warnings.catch_warnings(action="error", category=FutureWarning):
                re.compile(text)
        except (re.error, FutureWarning) as error:
            raise OptionError(
                f"subscribePattern {text!r} is not a Python regular expression ({error}): write "
                "one that matches a part of the topic names"
            ) from error
        return TopicSubscription(pattern=text)

    def limit(self, side: str, default: LimitKind) -> Limit:
        """A single timestamp takes precedence over timestamps of partitions, and these over
        offsets.
        """
        strategy = self.choice("startingOffsetsByTimestampStrategy", "error", "latest")
        no_match_is_latest = side == "ending" or strategy == "latest"
        if self.has(f"{side}Timestamp"):
            timestamp = self.integer(f"{side}Timestamp") or 0
            return Limit(LimitKind.TIMESTAMP, {}, timestamp, no_match_is_latest)
        by_timestamp = f"{side}OffsetsByTimestamp"
        if self.has(by_timestamp):
            values = parse_offsets(self.text(by_timestamp) or "", by_timestamp)
            return Limit(LimitKind.TIMESTAMPS, values, 0, no_match_is_latest)
        if not self.has(f"{side}Offsets"):
            return Limit(default)
        text = self.text(f"{side}Offsets") or ""
        if text.lower() in ("earliest", "latest"):
            return Limit(LimitKind(text.lower()))
        if text.lower() == "committed" and side == "starting":
            return Limit(LimitKind.COMMITTED)
        values = parse_offsets(text, f"{side}Offsets")
        for place, offset in values.items():
            if offset < EARLIEST:
                symbols = (
                    ", -1 (latest) or -2 (earliest)" if side == "starting" else " or -1 (latest)"
                )
                raise OptionError(
                    f"{side}Offsets of {names([place])} is {offset}: write an offset{symbols}"
                )
        return Limit(LimitKind.OFFSETS, values)

    def warn_of_unknown(self, use: str) -> None:
        """Log one line for each option that has no effect."""
        for lower, (name, _) in self._given.items():
            if lower.startswith(KAFKA_PREFIX) or lower in _OF_SPARK:
                continue
            option = BY_NAME.get(lower)
            if option is None:
                near = difflib.get_close_matches(lower, BY_NAME, 1)
                hint = f"; did you mean {BY_NAME[near[0]].name}?" if near else ""
                logger.warning("unknown option %s%s", name, hint)
            elif use not in option.uses:
                logger.warning("option %s has no effect here (%s)", option.name, use)
