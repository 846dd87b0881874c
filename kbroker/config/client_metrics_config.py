"""The configs of a subscription of client metrics (KIP-714): what which clients push, how often."""

from __future__ import annotations

import re
from collections.abc import Mapping

from kbroker.config.key import CLUSTER_WIDE, INT, LIST, MEDIUM, Key, split_list
from kbroker.config.topic_config import unknown_name
from kbroker.errors import ConfigError, ErrorCode, WireError

INTERVAL_MS, METRICS, MATCH = "interval.ms", "metrics", "match"
DEFAULT_INTERVAL_MS = 300_000
ALL_METRICS = "*"
# What a client is known by.
SELECTORS = (
    "client_id",
    "client_instance_id",
    "client_software_name",
    "client_software_version",
    "client_source_address",
    "client_source_port",
)
# BOUND: characters of a name, as of a topic's; patterns of a subscription, and characters of one.
NAME_CHARS_MAX = 249
PATTERNS_MAX = 20
PATTERN_CHARS_MAX = 1_000
_NAME = re.compile(r"[a-zA-Z0-9._-]+")

# fmt: off
CLIENT_METRICS_KEYS: dict[str, Key] = {
    key.name: key
    for key in (
        Key(INTERVAL_MS, INT, DEFAULT_INTERVAL_MS, MEDIUM, low=100, high=3_600_000,
            dynamic=CLUSTER_WIDE,
            doc="How often clients push metrics."),
        Key(METRICS, LIST, (), MEDIUM, dynamic=CLUSTER_WIDE,
            doc="Prefixes of names of metrics, such as org.apache.kafka.producer.; * means all."),
        Key(MATCH, LIST, (), MEDIUM, dynamic=CLUSTER_WIDE,
            doc="Which clients: selector=pattern, where the whole value has to match the regular "
                "expression. Selectors are " + ", ".join(SELECTORS) + ". A client must match all "
                "of them; without any, all clients do."),
    )
}
# fmt: on


def check_subscription_name(name: str) -> None:
    """INVALID_REQUEST unless a subscription can have this name."""
    if not _NAME.fullmatch(name) or len(name) > NAME_CHARS_MAX or name in (".", ".."):
        raise WireError(
            ErrorCode.INVALID_REQUEST,
            "The name of a subscription has letters, digits, '.', '_' and '-', and up to "
            f"{NAME_CHARS_MAX} of them.",
        )


def validate_subscription(configs: Mapping[str, str]) -> None:
    """Raises ConfigError."""
    for name, text in configs.items():
        key = CLIENT_METRICS_KEYS.get(name)
        if key is None:
            raise unknown_name(name, text, CLIENT_METRICS_KEYS, "subscription")
        key.parse(text)
    patterns(configs.get(MATCH, ""))


def patterns(text: str) -> dict[str, re.Pattern[str]]:
    """The patterns of ``match``, by selector. Raises ConfigError."""
    compiled: dict[str, re.Pattern[str]] = {}
    for item in split_list(text):
        selector, equals, pattern = item.partition("=")
        selector, pattern = selector.strip(), pattern.strip()
        if not equals or selector not in SELECTORS:
            raise ConfigError(MATCH, item[:200], f"selector=pattern, of {', '.join(SELECTORS)}")
        if len(pattern) > PATTERN_CHARS_MAX or len(compiled) >= PATTERNS_MAX:
            allowed = f"{PATTERNS_MAX} patterns of up to {PATTERN_CHARS_MAX} characters"
            raise ConfigError(MATCH, item[:200], allowed)
        try:
            compiled[selector] = re.compile(pattern)
        except re.error as error:
            raise ConfigError(MATCH, item[:200], f"a regular expression ({error})") from None
    return compiled
