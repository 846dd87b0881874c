"""The settings of ``KafkaProducer``: Java's names, and the defaults of Java's producer 4.x.

Those of the producer of 0.8.2 that later ones no longer have mean what they meant.
"""

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
    plugged,
    plugged_list,
    text,
    whole,
)
from kbroker.client.settings.common_settings import read_settings, with_common

IDEMPOTENT_IN_FLIGHT_MAX = 5  # BOUND: as many batches of a producer does a broker remember
# BOUND: requests of one connection without a response, each of which has a place in memory.
IN_FLIGHT_MAX = 10_000
# BOUND: a record's length has 32 bits, and so has that of its request.
BYTES_MAX = 1 << 29
_ACKS = {"all": -1, "-1": -1, "0": 0, "1": 1}
_OURS = "this client has it in another way: "


def acks(name: str, value: Any) -> int:
    """``all`` (or -1), 0 or 1."""
    number = _ACKS.get(str(value).strip().lower())
    if number is None:
        raise SettingRefused(name, f"{value!r} is not all, -1, 0 or 1")
    return number


def partitioner(name: str, value: Any) -> Any:
    """A callable, its dotted path, or one of Java's classes, of which only RoundRobin differs."""
    short = str(value).rpartition(".")[2] if isinstance(value, str) else ""
    if short in ("RoundRobinPartitioner", "round_robin"):
        return "round_robin"
    if short in ("DefaultPartitioner", "UniformStickyPartitioner", "BuiltInPartitioner"):
        return None if short != "UniformStickyPartitioner" else "ignore_keys"
    plugin = plugged(name, value)
    if not callable(plugin):
        raise SettingRefused(name, "a callable of (key, all_partitions, available_partitions)")
    return plugin


SETTINGS: dict[str, ClientSetting] = with_common(
    ClientSetting(
        "client.id", text, "", "Name of this producer in brokers' logs, quotas and metrics."
    ),
    ClientSetting(
        "key.serializer",
        plugged,
        None,
        "A callable that makes bytes of a key, or an object with `serialize(topic, key)`; unset: "
        "keys are bytes.",
    ),
    ClientSetting("value.serializer", plugged, None, "The same for values."),
    ClientSetting(
        "acks",
        acks,
        -1,
        "Whose acknowledgement a record needs: `all` in-sync replicas, the leader's alone (1), or "
        "none (0: offsets are -1, and failures are not noticed).",
    ),
    ClientSetting(
        "enable.idempotence",
        flag,
        True,
        "Each record is written once and in order, over retries. Needs `acks=all`, `retries` above "
        "0 and at most 5 requests in flight; off if one of these is set otherwise.",
    ),
    ClientSetting(
        "transactional.id",
        text,
        None,
        "Makes the producer transactional, and fences others that had the id before.",
    ),
    ClientSetting(
        "transaction.timeout.ms",
        whole,
        60_000,
        "A transaction that is not ended within this time is aborted by the cluster.",
        1,
        INT_MAX,
    ),
    ClientSetting(
        "batch.size",
        whole,
        16_384,
        "Bytes of a partition's batch, before compression; a larger record has one of its own. 0: "
        "a batch for each record.",
        0,
        BYTES_MAX,
    ),
    ClientSetting(
        "linger.ms",
        whole,
        5,
        "A batch that is not full waits this long for further records.",
        0,
        LONG_MAX // 1000,
    ),
    ClientSetting(
        "buffer.memory",
        whole,
        32 << 20,
        "Bytes of records that are not acknowledged; `send` waits when they are exceeded.",
        0,
        LONG_MAX,
    ),
    ClientSetting(
        "max.block.ms",
        whole,
        60_000,
        "How long `send` waits for memory (then `BufferExhausted`) and for metadata (`Timeout`), "
        "and each call of transactions (`Timeout`).",
        0,
        LONG_MAX // 1000,
    ),
    ClientSetting(
        "max.request.size",
        whole,
        1 << 20,
        "Bytes of a request, and of a record before compression.",
        0,
        BYTES_MAX,
    ),
    ClientSetting(
        "max.in.flight.requests.per.connection",
        whole,
        5,
        "Requests of a connection without a response. Without idempotence, retries may reorder "
        "records if it is more than 1.",
        1,
        IN_FLIGHT_MAX,
    ),
    ClientSetting(
        "retries",
        whole,
        INT_MAX,
        "How often a batch is sent again after an error that may pass, within "
        "`delivery.timeout.ms`.",
        0,
        INT_MAX,
    ),
    ClientSetting(
        "delivery.timeout.ms",
        whole,
        120_000,
        "From `send` until its future ends at the latest. At least `linger.ms` plus "
        "`request.timeout.ms`.",
        0,
        INT_MAX,
    ),
    ClientSetting(
        "request.timeout.ms",
        whole,
        30_000,
        "How long a response may take; then the connection is closed and its batches sent again.",
        1,
        INT_MAX,
    ),
    ClientSetting(
        "compression.type",
        text,
        "none",
        "Codec of batches.",
        one_of=("none", "gzip", "snappy", "lz4", "zstd"),
    ),
    ClientSetting("compression.gzip.level", whole, -1, "1 to 9, -1: gzip's own.", -1, 9),
    ClientSetting("compression.lz4.level", whole, 9, "1 to 17.", 1, 17),
    ClientSetting("compression.zstd.level", whole, 3, "-131072 to 22.", -131_072, 22),
    ClientSetting(
        "partitioner.class",
        partitioner,
        None,
        "Unset: records with a key by its murmur2 hash, as Java's; others stay with a partition "
        "for `batch.size` bytes (KIP-794). `RoundRobinPartitioner`, or a callable `(key, "
        "partitions, available)` that returns a partition. Also `partitioner`.",
    ),
    ClientSetting(
        "partitioner.ignore.keys", flag, False, "Records with a key are placed like those without."
    ),
    ClientSetting(
        "partitioner.adaptive.partitioning.enable",
        flag,
        True,
        "Partitions with shorter queues get more of the records without a key.",
    ),
    ClientSetting(
        "interceptor.classes",
        plugged_list,
        (),
        "Objects with `on_send(record)`, which returns the record to send, and "
        "`on_acknowledgement(metadata, error)`.",
    ),
    ClientSetting(
        "metadata.max.age.ms",
        whole,
        300_000,
        "Metadata is refreshed after this time, to find new brokers and partitions.",
        0,
        LONG_MAX // 1000,
    ),
    ClientSetting(
        "receive.buffer.bytes",
        whole,
        -1,
        "TCP receive buffer; -1: the system sizes it to the connection (Java's default: 32768).",
        -1,
    ),
    ClientSetting(
        "send.buffer.bytes",
        whole,
        -1,
        "TCP send buffer; -1: the system sizes it to the connection (Java's default: 131072).",
        -1,
    ),
    ClientSetting(
        "timeout.ms",
        whole,
        None,
        "Of 0.8.2: how long the leader waits for replicas. Unset: `request.timeout.ms`.",
        0,
        INT_MAX,
    ),
    ClientSetting(
        "block.on.buffer.full",
        flag,
        True,
        "Of 0.8.2. false: `send` does not wait for memory, but raises `BufferExhausted` at once.",
    ),
    ClientSetting(
        "metadata.fetch.timeout.ms",
        whole,
        None,
        "Of 0.8.2: how long `send` waits for metadata. Unset: `max.block.ms`.",
        0,
        LONG_MAX // 1000,
    ),
    ClientSetting(
        "partitioner.availability.timeout.ms",
        whole,
        0,
        "When a slow broker is avoided.",
        0,
        LONG_MAX // 1000,
        no_effect=_OURS + "partitions without a leader are avoided at once, slow ones by "
        "`partitioner.adaptive.partitioning.enable`",
    ),
    ClientSetting(
        "connections.max.idle.ms",
        whole,
        540_000,
        "When an idle connection is closed.",
        -1,
        LONG_MAX // 1000,
        no_effect="brokers close idle connections, and the next record opens one again",
    ),
    ClientSetting(
        "metadata.max.idle.ms",
        whole,
        300_000,
        "When a topic that nothing is sent to is forgotten.",
        0,
        LONG_MAX // 1000,
        no_effect="a topic takes a few hundred bytes and stays known",
    ),
)


def producer_settings(
    config: Mapping[str, Any] | None, keywords: Mapping[str, Any]
) -> ClientSettings:
    """Settings that are checked together. Raises SettingRefused."""
    renamed = {
        "partitioner.class" if name == "partitioner" else name: value
        for name, value in keywords.items()
    }
    settings = read_settings(SETTINGS, config, renamed)
    if settings["partitioner.class"] == "ignore_keys":
        settings["partitioner.class"] = None
        settings["partitioner.ignore.keys"] = True
    _settle_idempotence(settings)
    _settle_times(settings)
    return settings


def _settle_idempotence(settings: ClientSettings) -> None:
    """COMPAT: as Java's producer since 3.0.1, a default gives way, and what was set does not."""
    wanted = "enable.idempotence" in settings.given and settings["enable.idempotence"]
    in_flight = "max.in.flight.requests.per.connection"
    transactional = settings["transactional.id"] is not None
    if transactional and not settings["enable.idempotence"]:
        raise SettingRefused("enable.idempotence", "transactional.id needs it to be true")
    for name, fits, needed in (
        ("acks", settings["acks"] == -1, "all"),
        ("retries", settings["retries"] > 0, "more than 0"),
        (
            in_flight,
            settings[in_flight] <= IDEMPOTENT_IN_FLIGHT_MAX,
            f"at most {IDEMPOTENT_IN_FLIGHT_MAX}",
        ),
    ):
        if fits or not settings["enable.idempotence"]:
            continue
        if wanted or transactional:
            raise SettingRefused(name, f"an idempotent producer needs {needed}")
        settings["enable.idempotence"] = False


def _settle_times(settings: ClientSettings) -> None:
    least = settings["linger.ms"] + settings["request.timeout.ms"]
    if settings["delivery.timeout.ms"] < least:
        if "delivery.timeout.ms" in settings.given:
            raise SettingRefused(
                "delivery.timeout.ms",
                f"at least linger.ms + request.timeout.ms, which are {least}",
            )
        settings["delivery.timeout.ms"] = min(least, INT_MAX)
