"""The configs of one topic: its own override those of the broker."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from kbroker.config.key import LONG_MAX, TIMESTAMP_AFTER_MAX_MS, Key
from kbroker.config.loader import BrokerConfig
from kbroker.config.topic_keys import TOPIC_KEYS
from kbroker.errors import ConfigError

# BOUND: searches for the nearest name, each of which takes a quarter to eight milliseconds. A
# request may have 100,000 unknown configs, and the controller serves no other in the meantime.
HINTS_PER_SECOND_MAX = 20

# COMPAT: the name in the text of Kafka 0.8's documentation, but not in its table.
_OTHER_NAMES = {"log.cleanup.policy": "cleanup.policy"}


def setting_name(name: str) -> str:
    """The name of a topic config under any of its names."""
    return _OTHER_NAMES.get(name, name)


class TopicConfig:
    """Typed values of every topic setting, immutable; cheap enough for one per partition.

    ``config["retention.ms"]`` is the topic's own value, else what the broker gives (KeyError for a
    name that does not exist). Only the topic's own values are kept here; the rest is shared by all
    topics of one ``BrokerConfig``.
    """

    __slots__ = ("_defaults", "_own", "_texts")

    def __init__(self, overrides: Mapping[str, str], broker: BrokerConfig) -> None:
        """overrides: as stored. Names that do not exist are kept but mean nothing, so that a topic
        created by another broker still opens.

        Raises ConfigError for a value that is not allowed.
        """
        self._texts = dict(overrides)
        self._own: dict[str, Any] = {
            name: TOPIC_KEYS[name].parse(text)
            for name, text in overrides.items()
            if name in TOPIC_KEYS
        }
        self._defaults = broker.topic_defaults

    @classmethod
    def stored(cls, overrides: Mapping[str, str], broker: BrokerConfig) -> TopicConfig:
        """Of configs that any client may have stored: values that are not allowed are left out."""
        wrong = unusable(overrides)
        return cls({name: text for name, text in overrides.items() if name not in wrong}, broker)

    def __getitem__(self, name: str) -> Any:
        own = self._own
        return own[name] if name in own else self._defaults[name]

    def is_set(self, name: str) -> bool:
        """Whether the topic overrides the setting."""
        return name in self._own

    @property
    def overrides(self) -> dict[str, str]:
        """The topic's own settings as text; a copy."""
        return dict(self._texts)

    @property
    def timestamp_before_max_ms(self) -> int:
        """The maximum by which a CreateTime may be in the past; LONG_MAX for no limit."""
        return self._timestamp_bound("message.timestamp.before.max.ms", LONG_MAX)

    @property
    def timestamp_after_max_ms(self) -> int:
        """The maximum by which a CreateTime may be in the future; LONG_MAX for no limit."""
        return self._timestamp_bound("message.timestamp.after.max.ms", TIMESTAMP_AFTER_MAX_MS)

    def _timestamp_bound(self, name: str, default: int) -> int:
        # COMPAT: the older config applies, if it is set, where the newer one has its default (Kafka
        # 3.6, KIP-937).
        bound, older = int(self[name]), int(self["message.timestamp.difference.max.ms"])
        return older if bound == default and older != LONG_MAX else bound


def unusable(
    overrides: Mapping[str, str], keys: Mapping[str, Key] = TOPIC_KEYS
) -> dict[str, ConfigError]:
    """The configs of a topic, or those with other keys, whose values are not allowed."""
    problems = {}
    for name, text in overrides.items():
        try:
            if name in keys:
                keys[name].parse(text)
        except ConfigError as error:
            problems[name] = error
    return problems


def topic_key(name: str, text: str | None = None) -> Key:
    """The key of a topic setting. Raises ConfigError that names the nearest one."""
    key = TOPIC_KEYS.get(name)
    if key is None:
        raise unknown_name(name, text, TOPIC_KEYS, "topic")
    return key


class UnknownSetting(ConfigError):
    """A config that does not exist. kind: the resource it would belong to; empty for the broker."""

    def __init__(self, key: str, value: object, allowed: str, kind: str = "") -> None:
        super().__init__(key, value, allowed)
        self.kind = kind

    @property
    def client_text(self) -> str:
        """COMPAT: begins as Kafka's message."""
        hint = self.allowed.partition("; ")[2]
        kind = f"{self.kind} " if self.kind else ""
        return f"Unknown {kind}config name: {self.key}" + (f" ({hint})" if hint else "")

    def __reduce__(self) -> tuple[type[ConfigError], tuple[Any, ...]]:
        return type(self), (self.key, self.value, self.allowed, self.kind)


def unknown_name(
    name: str, text: str | None, known: Mapping[str, Key], kind: str = ""
) -> UnknownSetting:
    """The error for a config that does not exist, with the closest one that does. kind: the
    resource it would belong to; empty for the broker.
    """
    near = _nearest(name[:200], known) if _hints.take() else None
    hint = f"; did you mean {near}?" if near else ""
    shown = name[:200] if name.isprintable() else ascii(name[:200])
    value = "?" if text is None else ascii(text[:200])
    return UnknownSetting(shown, value, f"a known setting{hint}", kind)


def _nearest(name: str, known: Mapping[str, Key]) -> str | None:
    import difflib  # only for a mistake; it would cost every start some milliseconds

    return next(iter(difflib.get_close_matches(name, known, n=1)), None)


class _Hints:
    """The number of unknown names per second that get a suggestion; people make no more
    mistakes.
    """

    def __init__(self) -> None:
        self._second = 0
        self._left = 0

    def take(self) -> bool:
        """Whether another suggestion is allowed in this second."""
        second = int(time.monotonic())
        if second != self._second:
            self._second, self._left = second, HINTS_PER_SECOND_MAX
        self._left -= 1
        return self._left >= 0


_hints = _Hints()


def validate(name: str, text: str) -> Any:
    """The typed value of one topic setting. Raises ConfigError."""
    return topic_key(name, text).parse(text)


def validate_topic(overrides: Mapping[str, str], broker: BrokerConfig) -> TopicConfig:
    """Check all settings of a topic, alone and together. Raises ConfigError.

    For what clients ask for: here a name that does not exist is an error.
    """
    for name, text in overrides.items():
        topic_key(name, text)
    config = TopicConfig(overrides, broker)
    lag_min = config["min.compaction.lag.ms"]
    # Otherwise no record could ever be compacted in time.
    if lag_min > config["max.compaction.lag.ms"]:
        allowed = f"at least min.compaction.lag.ms ({lag_min})"
        raise ConfigError("max.compaction.lag.ms", config["max.compaction.lag.ms"], allowed)
    return config
