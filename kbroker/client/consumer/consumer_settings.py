"""The settings of ``KafkaConsumer``: Java's names, and the defaults of Java's consumer 4.x."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kbroker.client.errors import SettingRefused
from kbroker.client.settings.client_settings import (
    INT_MAX,
    LONG_MAX,
    ClientSetting,
    ClientSettings,
    flag,
    listed,
    plugged,
    plugged_list,
    text,
    whole,
)
from kbroker.client.settings.common_settings import read_settings, with_common
from kbroker.quantities import iso_duration_ms

CLASSIC, CONSUMER = "classic", "consumer"
EARLIEST, LATEST, NONE, BY_DURATION = "earliest", "latest", "none", "by_duration"
# Settings that the consumer protocol takes from the group's configuration on the brokers.
_OF_THE_GROUP = ("session.timeout.ms", "heartbeat.interval.ms", "partition.assignment.strategy")
_ASSIGNORS = {
    "RangeAssignor": "range",
    "RoundRobinAssignor": "roundrobin",
    "StickyAssignor": "sticky",
    "CooperativeStickyAssignor": "cooperative-sticky",
}


def reset_policy(name: str, value: Any) -> str:
    """`earliest`, `latest`, `none`, or `by_duration:` and a duration of ISO 8601, as PT1H."""
    policy = str(value).strip().lower()
    if policy in (EARLIEST, LATEST, NONE):
        return policy
    if policy in ("smallest", "largest"):  # COMPAT: of 0.8
        return EARLIEST if policy == "smallest" else LATEST
    kind, _, duration = policy.partition(":")
    if kind == BY_DURATION and duration_ms(duration) is not None:
        return f"{BY_DURATION}:{duration.upper()}"
    raise SettingRefused(name, f"{value!r} is not earliest, latest, none or by_duration:P1DT2H3M4S")


def duration_ms(value: str) -> int | None:
    """Milliseconds of a duration of ISO 8601, such as ``PT1H30M``; None if it is none."""
    duration = iso_duration_ms(value.strip())
    return None if duration is None or duration < 0 else duration


def assignors(name: str, value: Any) -> tuple[Any, ...]:
    """A list of `range`, `roundrobin`, `sticky`, `cooperative-sticky`, Java's classes of these, or
    objects."""
    return tuple(_assignor(name, one) for one in listed(name, value))


def _assignor(name: str, value: Any) -> Any:
    if not isinstance(value, str):
        return plugged(name, value)
    short = value.strip().rpartition(".")[2]
    if short.lower() in _ASSIGNORS.values():
        return short.lower()
    return _ASSIGNORS.get(short) or plugged(name, value)


SETTINGS: dict[str, ClientSetting] = with_common(
    ClientSetting(
        "client.id", text, "", "Name of this consumer in brokers' logs, quotas and metrics."
    ),
    ClientSetting(
        "group.id",
        text,
        None,
        "The group whose members share the partitions, and whose committed offsets they continue "
        "from. Needed for `subscribe` and for commits.",
    ),
    ClientSetting(
        "group.protocol",
        text,
        CLASSIC,
        "`classic`: members assign partitions; `consumer`: the coordinator does (KIP-848, Kafka "
        "from 4.0).",
        one_of=(CLASSIC, CONSUMER),
    ),
    ClientSetting(
        "group.instance.id",
        text,
        None,
        "Makes it a static member: after a restart within `session.timeout.ms` it has the same "
        "partitions again, without a rebalance.",
    ),
    ClientSetting(
        "group.remote.assignor",
        text,
        None,
        "Name of the coordinator's assignor, for `group.protocol=consumer`.",
    ),
    ClientSetting(
        "key.deserializer",
        plugged,
        None,
        "A callable that makes a key of bytes, or an object with `deserialize(topic, data)`; "
        "unset: keys are bytes. Not called for null.",
    ),
    ClientSetting("value.deserializer", plugged, None, "The same for values."),
    ClientSetting(
        "auto.offset.reset",
        reset_policy,
        LATEST,
        "Where to begin without a committed offset, or if it is not in the log (any more). `none`: "
        "`poll` raises `NoOffsetForPartition` or `OffsetOutOfRange`.",
    ),
    ClientSetting(
        "enable.auto.commit",
        flag,
        True,
        "Positions are committed by `poll` every `auto.commit.interval.ms`, before partitions are "
        "given up, and by `close`. Off without `group.id`.",
    ),
    ClientSetting(
        "auto.commit.interval.ms", whole, 5_000, "Time between these commits.", 0, LONG_MAX // 1000
    ),
    ClientSetting(
        "max.poll.records", whole, 500, "Records that one `poll` returns at most.", 1, INT_MAX
    ),
    ClientSetting(
        "max.poll.interval.ms",
        whole,
        300_000,
        "A consumer that calls `poll` less often leaves its group.",
        1,
        INT_MAX,
    ),
    ClientSetting(
        "session.timeout.ms",
        whole,
        45_000,
        "A member without a heartbeat for so long is removed from its group.",
        1,
        INT_MAX,
    ),
    ClientSetting(
        "heartbeat.interval.ms",
        whole,
        3_000,
        "Time between heartbeats. Below `session.timeout.ms`.",
        1,
        INT_MAX,
    ),
    ClientSetting(
        "partition.assignment.strategy",
        assignors,
        ("range", "cooperative-sticky"),
        "How the members' leader assigns partitions: `range`, `roundrobin`, `sticky`, "
        "`cooperative-sticky`, or Java's classes of these; the first that all members have counts. "
        "Also objects with `name`, `subscription_user_data(topics)` and `assign(partitions, "
        "members)`.",
    ),
    ClientSetting(
        "fetch.min.bytes",
        whole,
        1,
        "A broker answers a fetch when it has so many bytes, or after `fetch.max.wait.ms`.",
        0,
        INT_MAX,
    ),
    ClientSetting(
        "fetch.max.wait.ms",
        whole,
        500,
        "How long a broker may wait for `fetch.min.bytes`.",
        0,
        INT_MAX,
    ),
    ClientSetting(
        "fetch.max.bytes",
        whole,
        50 << 20,
        "Bytes of a response to a fetch; a larger first batch is returned, all the same. Two "
        "responses of each broker are held in memory.",
        0,
        INT_MAX,
    ),
    ClientSetting(
        "max.partition.fetch.bytes",
        whole,
        1 << 20,
        "Bytes of one partition in it, likewise.",
        0,
        INT_MAX,
    ),
    ClientSetting(
        "isolation.level",
        text,
        "read_uncommitted",
        "`read_committed`: without records of aborted transactions, and up to the first open one.",
        one_of=("read_uncommitted", "read_committed"),
    ),
    ClientSetting("check.crcs", flag, True, "Compare the checksums of batches."),
    ClientSetting(
        "client.rack",
        text,
        "",
        "The rack of this consumer: partitions are read from a replica in it (KIP-392), and "
        "assigned by it, where brokers and assignors know racks.",
    ),
    ClientSetting(
        "exclude.internal.topics",
        flag,
        True,
        "A pattern does not subscribe to topics that Kafka keeps for itself.",
    ),
    ClientSetting(
        "allow.auto.create.topics",
        flag,
        True,
        "Brokers with `auto.create.topics.enable` create topics that are subscribed to.",
    ),
    ClientSetting(
        "interceptor.classes",
        plugged_list,
        (),
        "Objects with `on_consume(records)`, which returns the records that `poll` returns, and "
        "`on_commit(offsets)`.",
    ),
    ClientSetting(
        "default.api.timeout.ms",
        whole,
        60_000,
        "How long a call without `timeout` may take.",
        0,
        INT_MAX,
    ),
    ClientSetting(
        "request.timeout.ms",
        whole,
        30_000,
        "How long a response may take; then the connection is closed and the request repeated.",
        1,
        INT_MAX,
    ),
    ClientSetting(
        "metadata.max.age.ms",
        whole,
        300_000,
        "Metadata is refreshed after this time, to find new topics, partitions and brokers.",
        0,
        LONG_MAX // 1000,
    ),
    ClientSetting(
        "receive.buffer.bytes",
        whole,
        -1,
        "TCP receive buffer of connections that are fetched over; -1: the system sizes it to the "
        "connection (Java's default: 65536).",
        -1,
    ),
    ClientSetting(
        "send.buffer.bytes",
        whole,
        131_072,
        "TCP send buffer.",
        -1,
        no_effect="requests are small; the system's own is used",
    ),
    ClientSetting(
        "connections.max.idle.ms",
        whole,
        540_000,
        "When an idle connection is closed.",
        -1,
        LONG_MAX // 1000,
        no_effect="connections that were idle for four minutes are replaced when they are needed",
    ),
    ClientSetting(
        "metadata.recovery.rebootstrap.trigger.ms",
        whole,
        300_000,
        "When the bootstrap servers are tried again.",
        0,
        LONG_MAX // 1000,
        no_effect="they are always tried, too",
    ),
)


def consumer_settings(
    config: Mapping[str, Any] | None, keywords: Mapping[str, Any]
) -> ClientSettings:
    """Settings that are checked together. Raises SettingRefused."""
    settings = read_settings(SETTINGS, config, keywords)
    if settings["group.id"] is None:
        for name in ("group.instance.id", "enable.auto.commit"):
            if name in settings.given and settings[name]:
                raise SettingRefused(name, "it needs group.id")
        settings["enable.auto.commit"] = False
    elif not settings["group.id"].strip():
        raise SettingRefused("group.id", "it is empty")
    if settings["group.protocol"] == CONSUMER:
        _check_consumer_protocol(settings)
    else:
        _check_classic(settings)
    return settings


def _check_consumer_protocol(settings: ClientSettings) -> None:
    for name in _OF_THE_GROUP:
        if name in settings.given:
            raise SettingRefused(
                name,
                "with group.protocol=consumer it is set on the brokers, for the group or for all",
            )


def _check_classic(settings: ClientSettings) -> None:
    if "group.remote.assignor" in settings.given:
        raise SettingRefused("group.remote.assignor", "it needs group.protocol=consumer")
    if not settings["partition.assignment.strategy"]:
        raise SettingRefused("partition.assignment.strategy", "name at least one")
    if settings["heartbeat.interval.ms"] >= settings["session.timeout.ms"]:
        raise SettingRefused(
            "heartbeat.interval.ms",
            f"it must be below session.timeout.ms, which is {settings['session.timeout.ms']}",
        )
