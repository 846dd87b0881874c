"""The configs of one group: its own override those of the broker, within the broker's bounds.

As in Kafka 4.3, a value must be within ``group.consumer.min`` and ``max`` when it is set. Where the
bounds became narrower since, the stored value stays, and the nearest bound is what counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from kbroker.config.key import BOOLEAN, CLUSTER_WIDE, INT, MEDIUM, UNUSED, Key
from kbroker.config.topic_config import unknown_name, unusable
from kbroker.errors import ConfigError

if TYPE_CHECKING:
    from kbroker.config.loader import BrokerConfig

SESSION_TIMEOUT_MS = "consumer.session.timeout.ms"
HEARTBEAT_INTERVAL_MS = "consumer.heartbeat.interval.ms"
ASSIGNMENT_INTERVAL_MS = "consumer.assignment.interval.ms"
OFFLOAD_ENABLE = "consumer.assignor.offload.enable"

# fmt: off
GROUP_KEYS: dict[str, Key] = {
    key.name: key
    for key in (
        Key(SESSION_TIMEOUT_MS, INT, 45_000, MEDIUM, low=1, dynamic=CLUSTER_WIDE,
            server_keys=(("group.consumer.session.timeout.ms", 1),),
            doc="How long a member may go without a heartbeat, in the consumer protocol."),
        Key(HEARTBEAT_INTERVAL_MS, INT, 5000, MEDIUM, low=1, dynamic=CLUSTER_WIDE,
            server_keys=(("group.consumer.heartbeat.interval.ms", 1),),
            doc="How often members send heartbeats, in the consumer protocol."),
        Key(ASSIGNMENT_INTERVAL_MS, INT, 1000, MEDIUM, low=0, dynamic=CLUSTER_WIDE,
            server_keys=(("group.consumer.assignment.interval.ms", 1),),
            doc="Shortest time from one target assignment to the next, in the consumer protocol."),
        Key(OFFLOAD_ENABLE, BOOLEAN, True, MEDIUM, dynamic=CLUSTER_WIDE, status=UNUSED,
            server_keys=(("group.consumer.assignor.offload.enable", 1),),
            doc="Whether target assignments are computed in separate threads."),
    )
}
# fmt: on


def validate_group(overrides: Mapping[str, str], broker: BrokerConfig) -> None:
    """Check all settings of a group, alone and together. Raises ConfigError."""
    values = {name: broker[key.server_keys[0][0]] for name, key in GROUP_KEYS.items()}
    for name, text in overrides.items():
        key = GROUP_KEYS.get(name)
        if key is None:
            raise unknown_name(name, text, GROUP_KEYS, "group")
        value = values[name] = key.parse(text)
        if key.type == BOOLEAN:
            continue
        low, high = bounds(name, broker)
        if not low <= value <= high:
            raise key.error(text, f"from {low} to {high}, the bounds of group.consumer.min and max")
    session_ms, heartbeat_ms = values[SESSION_TIMEOUT_MS], values[HEARTBEAT_INTERVAL_MS]
    if session_ms <= heartbeat_ms:
        # The member would be removed before its first heartbeat could arrive.
        allowed = f"above {HEARTBEAT_INTERVAL_MS} ({heartbeat_ms})"
        raise ConfigError(SESSION_TIMEOUT_MS, session_ms, allowed)


def bounds(name: str, broker: BrokerConfig) -> tuple[int, int]:
    """The range that the broker allows for a group's setting."""
    rest = name.removeprefix("consumer.")
    return broker[f"group.consumer.min.{rest}"], broker[f"group.consumer.max.{rest}"]


def value_of(name: str, overrides: Mapping[str, str], broker: BrokerConfig) -> int:
    """The effective setting of a group with these overrides, which any client may have stored: a
    value that is no number counts as unset.
    """
    if name not in overrides or unusable({name: overrides[name]}, GROUP_KEYS):
        value: int = broker[GROUP_KEYS[name].server_keys[0][0]]
        return value
    low, high = bounds(name, broker)
    value = GROUP_KEYS[name].parse(overrides[name])
    return min(max(value, low), high)
