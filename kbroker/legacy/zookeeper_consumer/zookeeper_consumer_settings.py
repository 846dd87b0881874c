"""The settings of the ZooKeeper consumer: names, defaults and meanings of Kafka 0.8.2."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Any

from kbroker.client.errors import SettingRefused
from kbroker.client.settings.client_settings import (
    INT_MAX,
    LONG_MAX,
    ClientSetting,
    ClientSettings,
    flag,
    text,
    whole,
)
from kbroker.properties import PropertiesError, read_properties

SMALLEST, LARGEST = "smallest", "largest"
ZOOKEEPER, KAFKA = "zookeeper", "kafka"
RANGE, ROUNDROBIN = "range", "roundrobin"
_LATER_NAMES = {"earliest": SMALLEST, "latest": LARGEST}
_LEGAL = re.compile(r"[a-zA-Z0-9._-]*")
_MS_MAX = LONG_MAX // 1000


def reset(name: str, value: Any) -> str:
    """`smallest`, `largest`, or another word."""
    word = str(value).strip().lower()
    word = _LATER_NAMES.get(word, word)
    if word in (SMALLEST, LARGEST):
        return word
    near = difflib.get_close_matches(word, (SMALLEST, LARGEST, *_LATER_NAMES), n=1)
    if near or not word:
        advice = near[0] if near else f"{SMALLEST}, {LARGEST} or none"
        raise SettingRefused(name, f"{value!r} is not allowed; did you mean {advice}?")
    return word


def legal(name: str, value: Any) -> str:
    """Letters, digits, dots, underscores and hyphens."""
    text = str(value)
    if not text or not _LEGAL.fullmatch(text):
        raise SettingRefused(name, f"{text!r} may have letters, digits, '.', '_' and '-' only")
    return text


def servers(name: str, value: Any) -> str:
    """`host:port,host:port/chroot`."""
    hosts, slash, chroot = str(value).strip().partition("/")
    for host in hosts.split(","):
        port = host.strip().rpartition(":")[2] if ":" in host else "2181"
        if not host.strip() or not port.isdecimal() or not 0 < int(port) < 65536:
            raise SettingRefused(name, f"{host.strip()!r} is not host:port")
    return hosts.replace(" ", "") + (slash + chroot.strip("/") if chroot.strip("/") else "")


SETTINGS: dict[str, ClientSetting] = {
    row.name: row
    for row in (
        ClientSetting(
            "group.id",
            legal,
            None,
            "The group whose consumers share the partitions, and whose offsets they continue from. "
            "Required.",
        ),
        ClientSetting(
            "zookeeper.connect",
            servers,
            None,
            "The ZooKeeper of the brokers, with the same chroot path. Required.",
        ),
        ClientSetting(
            "consumer.id",
            legal,
            None,
            "Tells this consumer from others of its group. Unset: host, time and a random number.",
        ),
        ClientSetting(
            "socket.timeout.ms",
            whole,
            30_000,
            "How long a response may take; that to a fetch `fetch.wait.max.ms` more.",
            1,
            INT_MAX,
        ),
        ClientSetting(
            "socket.receive.buffer.bytes",
            whole,
            64 << 10,
            "The TCP receive buffer of connections that are fetched over; -1: as large as the "
            "system allows.",
            -1,
            INT_MAX,
        ),
        ClientSetting(
            "fetch.message.max.bytes",
            whole,
            1 << 20,
            "Bytes to fetch of each partition at once. A larger message is fetched, all the same.",
            1,
            INT_MAX,
        ),
        ClientSetting(
            "num.consumer.fetchers",
            whole,
            1,
            "Threads and connections that fetch from each broker, which share its partitions.",
            1,
            1_000,
        ),
        ClientSetting(
            "auto.commit.enable",
            flag,
            True,
            "Offsets are committed every `auto.commit.interval.ms`, before a rebalance and by "
            "`shutdown`.",
        ),
        ClientSetting(
            "auto.commit.interval.ms", whole, 60_000, "Time between these commits.", 1, _MS_MAX
        ),
        ClientSetting(
            "queued.max.message.chunks",
            whole,
            10,
            "Chunks that wait for each stream, of up to `fetch.message.max.bytes` each; a stream "
            "that has so many stops the fetches from its brokers.",
            1,
            INT_MAX,
        ),
        ClientSetting(
            "rebalance.max.retries",
            whole,
            4,
            "Attempts at a rebalance; then streams raise `RebalanceFailed`.",
            1,
            INT_MAX,
        ),
        ClientSetting(
            "fetch.min.bytes",
            whole,
            1,
            "A broker answers a fetch when it has so many bytes, or after `fetch.wait.max.ms`.",
            0,
            INT_MAX,
        ),
        ClientSetting(
            "fetch.wait.max.ms",
            whole,
            100,
            "How long a broker may wait for `fetch.min.bytes`.",
            0,
            INT_MAX,
        ),
        ClientSetting(
            "rebalance.backoff.ms",
            whole,
            None,
            "Pause between attempts at a rebalance. Unset: `zookeeper.sync.time.ms`.",
            0,
            _MS_MAX,
        ),
        ClientSetting(
            "refresh.leader.backoff.ms",
            whole,
            200,
            "Pause before the leader of a partition that has lost it is looked up, and before the "
            "next attempt.",
            0,
            _MS_MAX,
        ),
        ClientSetting(
            "auto.offset.reset",
            reset,
            LARGEST,
            "Where to begin without a committed offset, or if it is not in the log (any more): at "
            "the `smallest` or the `largest` offset (`earliest`, `latest`). With any other word, "
            "such as `none`, the stream raises `NoInitialOffset` or `OffsetOutOfRange`.",
        ),
        ClientSetting(
            "consumer.timeout.ms",
            whole,
            -1,
            "A stream that has no message for so long raises `ConsumerTimeout`; -1: never.",
            -1,
            _MS_MAX,
        ),
        ClientSetting(
            "exclude.internal.topics",
            flag,
            True,
            "Filters do not select topics that Kafka keeps for itself.",
        ),
        ClientSetting(
            "partition.assignment.strategy",
            text,
            RANGE,
            "`range`: consecutive partitions of each topic. `roundrobin`: the partitions of all "
            "topics in turn; all consumers of the group must have the same topics, with as many "
            "streams for each of them. All must have the same strategy.",
            one_of=(RANGE, ROUNDROBIN),
        ),
        ClientSetting(
            "client.id",
            legal,
            None,
            "Name of this consumer in brokers' logs, quotas and metrics. Unset: `group.id`.",
        ),
        ClientSetting(
            "zookeeper.session.timeout.ms",
            whole,
            6_000,
            "A consumer that ZooKeeper does not hear of for so long counts as dead: its partitions "
            "go to others.",
            1,
            INT_MAX,
        ),
        ClientSetting(
            "zookeeper.connection.timeout.ms",
            whole,
            6_000,
            "How long the first connection to ZooKeeper may take.",
            1,
            INT_MAX,
        ),
        ClientSetting(
            "zookeeper.sync.time.ms",
            whole,
            2_000,
            "How far a server of ZooKeeper may be behind its leader: the default of "
            "`rebalance.backoff.ms`.",
            0,
            _MS_MAX,
        ),
        ClientSetting(
            "offsets.storage",
            text,
            ZOOKEEPER,
            "Where offsets are committed: in `zookeeper`, or by the brokers (`kafka`).",
            one_of=(ZOOKEEPER, KAFKA),
        ),
        ClientSetting(
            "offsets.channel.backoff.ms",
            whole,
            1_000,
            "Pause before the coordinator is looked up or asked again.",
            0,
            _MS_MAX,
        ),
        ClientSetting(
            "offsets.channel.socket.timeout.ms",
            whole,
            10_000,
            "How long the response to a lookup of the coordinator, to a commit or a request for "
            "offsets may take.",
            1,
            INT_MAX,
        ),
        ClientSetting(
            "offsets.commit.max.retries",
            whole,
            5,
            "Further attempts at a commit by `commit_offsets`, before a rebalance and by "
            "`shutdown`. The lookup of the coordinator does not count; a periodic commit is not "
            "repeated before the next one.",
            0,
            INT_MAX,
        ),
        ClientSetting(
            "dual.commit.enabled",
            flag,
            True,
            "Offsets are committed to both storages, and the larger one counts: while a group "
            "migrates. With `offsets.storage=zookeeper` only if this is set.",
        ),
    )
}


class ConsumerConfig:
    """Checked settings. config: under their names; keywords: the same, with ``_`` for ``.``.

    Raises SettingRefused.
    """

    def __init__(self, config: Mapping[str, Any] | None = None, **settings: Any) -> None:
        values = ClientSettings(SETTINGS, config, settings)
        for name in ("group.id", "zookeeper.connect"):
            if values[name] is None:
                raise SettingRefused(name, "it is required")
        if values["client.id"] is None:
            values["client.id"] = values["group.id"]
        if values["rebalance.backoff.ms"] is None:
            values["rebalance.backoff.ms"] = values["zookeeper.sync.time.ms"]
        self.settings = values

    @classmethod
    def from_file(cls, path: str, **settings: Any) -> ConsumerConfig:
        """Read a file in Java's properties format. settings: replace those of the file."""
        try:
            pairs = dict(read_properties(path))
        except (OSError, PropertiesError) as error:
            raise SettingRefused(path, f"cannot read it: {error}") from error
        return cls({**pairs, **{name.replace("_", "."): v for name, v in settings.items()}})

    def __getitem__(self, name: str) -> Any:
        return self.settings[name]

    def seconds(self, name: str) -> float:
        """A setting in milliseconds."""
        return float(self.settings[name]) / 1000
