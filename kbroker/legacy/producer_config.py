"""The settings of the producer of 0.8: names, defaults and meanings of 0.8.2, and the names of 0.7
that its documents have.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Mapping
from typing import Any

from kbroker.client.connections.addresses import parse_addresses
from kbroker.client.errors import SettingRefused
from kbroker.client.settings.client_settings import (
    INT_MAX,
    LONG_MAX,
    ClientSetting,
    ClientSettings,
    listed,
    plugged,
    text,
    whole,
)
from kbroker.legacy.encoders import EncoderOf
from kbroker.legacy.partitioners import partition_function
from kbroker.legacy.sync_producer import REQUEST_ROWS
from kbroker.properties import read_properties
from kbroker.record.compression import CODEC_NAMES, ZSTD

_CODECS = CODEC_NAMES[:ZSTD]
_CLIENT_ID = re.compile(r"[A-Za-z0-9._-]*")
# Java's classes, which properties files of 0.8 name.
_JAVA = re.compile(r"kafka\.(?:javaapi\.)?(serializer|producer)\.(?:async\.)?(\w+)")
_MODULES = {
    "DefaultEncoder": "encoders",
    "StringEncoder": "encoders",
    "NullEncoder": "encoders",
    "IntegerEncoder": "encoders",
    "LongEncoder": "encoders",
    "DefaultPartitioner": "partitioners",
    "ByteArrayPartitioner": "partitioners",
    "RoundRobinPartitioner": "partitioners",
    "DefaultEventHandler": "event_handlers",
}
# 0.7 name -> the one that 0.8 has.
_OLDER = {"queue.time": "queue.buffering.max.ms", "batch.size": "batch.num.messages"}
_PLACES = ("metadata.broker.list", "broker.list", "zk.connect")
# Settings of the newer producer -> what is meant.
_NEWER = {
    "acks": "request.required.acks",
    "bootstrap.servers": "metadata.broker.list",
    "buffer.memory": "queue.buffering.max.messages",
    "compression.type": "compression.codec",
    "key.serializer": "key.serializer.class",
    "linger.ms": "queue.buffering.max.ms",
    "max.block.ms": "queue.enqueue.timeout.ms",
    "metadata.max.age.ms": "topic.metadata.refresh.interval.ms",
    "partitioner": "partitioner.class",
    "retries": "message.send.max.retries",
    "timeout.ms": "request.timeout.ms",
    "value.serializer": "serializer.class",
    "zookeeper.connect": "zk.connect",
}


def plugin(name: str, value: Any) -> Any:
    """An object or a callable; a class or its dotted path, also one of Kafka's of this kind."""
    if isinstance(value, str):
        short = _JAVA.fullmatch(value.strip())
        known = _MODULES.get(short[2] if short else value.strip())
        if short and known is None:
            fitting = ", ".join(sorted(one for one in _MODULES if one.endswith(_kind_of(name))))
            raise SettingRefused(
                name, f"{value} is a class in Java: write the path of one in Python, or {fitting}"
            )
        if known is not None:
            value = f"{__package__}.{known}.{short[2] if short else value.strip()}"
    return plugged(name, value)


def _kind_of(name: str) -> str:
    return {"partitioner.class": "Partitioner", "event.handler": "Handler"}.get(name, "Encoder")


def codec(name: str, value: Any) -> str:
    """The name of a codec, or its number."""
    given = str(value).strip().lower()
    return _CODECS[int(given)] if given.isdecimal() and int(given) < len(_CODECS) else given


def encoding(name: str, value: Any) -> str:
    """The name of an encoding."""
    try:
        return codecs.lookup(str(value)).name
    except LookupError:
        raise SettingRefused(name, f"{value!r} is no encoding of text") from None


def client_id(name: str, value: Any) -> str:
    """Text of letters, digits, dots, dashes and underscores."""
    if not _CLIENT_ID.fullmatch(str(value)):
        raise SettingRefused(name, f"{value!r}: letters, digits, '.', '_' and '-' alone")
    return str(value)


_ROWS = (
    ClientSetting(
        "metadata.broker.list",
        listed,
        (),
        "`host:port,host:port`: brokers that are asked where topics are; messages then go to the "
        "leaders. This, `zk.connect` or `broker.list` is needed.",
    ),
    *(row._replace(kind=client_id) if row.name == "client.id" else row for row in REQUEST_ROWS),
    ClientSetting(
        "producer.type",
        text,
        "sync",
        "`sync`: `send` returns when the messages are acknowledged. `async`: a thread sends them "
        "in batches; those that cannot be sent are lost, and a line in the log says so.",
        one_of=("sync", "async"),
    ),
    ClientSetting(
        "serializer.class",
        plugin,
        "kafka.serializer.DefaultEncoder",
        "What makes bytes of messages: an object with `to_bytes(data)` or `to_message(data)`, or a "
        "callable. Kafka's are there: `DefaultEncoder` (bytes as they are), `StringEncoder`, "
        "`IntegerEncoder`, `LongEncoder`, `NullEncoder`.",
    ),
    ClientSetting(
        "key.serializer.class", plugin, None, "The same for keys. Unset: `serializer.class`."
    ),
    ClientSetting("serializer.encoding", encoding, "utf-8", "Of `StringEncoder`."),
    ClientSetting(
        "partitioner.class",
        plugin,
        "kafka.producer.DefaultPartitioner",
        "Where messages with a key go: an object with `partition(key, num_partitions)`, or a "
        "callable. `DefaultPartitioner`: by Java's hash of the key. `ByteArrayPartitioner`, "
        "`RoundRobinPartitioner`. Messages without a key go to a random partition, and stay with "
        "it until the metadata is refreshed.",
    ),
    ClientSetting(
        "compression.codec",
        codec,
        "none",
        "Of the messages that go to a partition in one request.",
        one_of=_CODECS,
    ),
    ClientSetting(
        "compressed.topics", listed, (), "The topics that are compressed. Unset: all of them."
    ),
    ClientSetting(
        "message.send.max.retries",
        whole,
        3,
        "How often messages are sent again that were not acknowledged; they may be written twice.",
        0,
        INT_MAX,
    ),
    ClientSetting(
        "retry.backoff.ms",
        whole,
        100,
        "Pause before that, after which the metadata of their topics is refreshed: electing a "
        "leader takes time.",
        0,
        INT_MAX,
    ),
    ClientSetting(
        "topic.metadata.refresh.interval.ms",
        whole,
        600_000,
        "Metadata of the topics in use is refreshed this often, when something is sent. 0: with "
        "each request. Negative: after failures alone.",
        high=LONG_MAX,
    ),
    ClientSetting(
        "queue.buffering.max.ms",
        whole,
        5_000,
        "async: how long messages are gathered for a batch.",
        0,
        LONG_MAX // 1000,
    ),
    ClientSetting(
        "queue.buffering.max.messages",
        whole,
        10_000,
        "async: how many messages may wait.",
        1,
        INT_MAX,
    ),
    ClientSetting(
        "queue.enqueue.timeout.ms",
        whole,
        -1,
        "async: how long `send` waits for a place in the queue before it drops the message and "
        "raises `QueueFull`. 0: not at all. Negative: for ever.",
        high=LONG_MAX // 1000,
    ),
    ClientSetting(
        "batch.num.messages",
        whole,
        200,
        "async: a batch is sent when it has so many messages. At most "
        "`queue.buffering.max.messages`.",
        1,
        INT_MAX,
    ),
    ClientSetting(
        "event.handler",
        plugin,
        "kafka.producer.async.DefaultEventHandler",
        "What is done with a batch (sync: with what is given to `send`): an object with "
        "`init(config)`, `handle(events, producer, encoder)` and `close()`. "
        "`producer.dispatch(...)` sends.",
    ),
    ClientSetting(
        "callback.handler",
        plugin,
        None,
        "async: a `CallbackHandler`, which is called at each stage of the queue.",
    ),
    ClientSetting(
        "queue.time",
        whole,
        None,
        "Of 0.7: `queue.buffering.max.ms`.",
        0,
        LONG_MAX // 1000,
    ),
    ClientSetting("batch.size", whole, None, "Of 0.7: `batch.num.messages`.", 1, INT_MAX),
    ClientSetting(
        "broker.list",
        listed,
        (),
        "Of 0.7, `id:host:port,...` or `host:port,...`: as `metadata.broker.list`.",
    ),
    ClientSetting(
        "zk.connect",
        text,
        None,
        "Of 0.7, `host:port,host:port/path` of ZooKeeper: the brokers that are registered there "
        "are asked where topics are, and again when brokers or topics change there.",
    ),
)
SETTINGS: dict[str, ClientSetting] = {row.name: row for row in _ROWS}


class ProducerConfig:
    """``ProducerConfig({"metadata.broker.list": "h:9092"})``, with keywords (``_`` for ``.``), or
    ``ProducerConfig.from_file(path)``. ``config["client.id"]``.

    Raises SettingRefused.
    """

    def __init__(self, props: Mapping[str, Any] | None = None, **keywords: Any) -> None:
        for key in (*(props or {}), *keywords):
            meant = _NEWER.get(key) or _NEWER.get(key.replace("_", "."))
            if meant is not None:
                raise SettingRefused(key, f"unknown client setting; did you mean {meant}?")
        self._values = values = ClientSettings(SETTINGS, props, keywords)
        self.given = values.given
        self.security = values.security
        for older, name in _OLDER.items():
            if older in self.given:
                if name in self.given:
                    raise SettingRefused(older, f"it is given twice, also as {name}")
                values[name] = values[older]
        self._settle_places()
        if values["batch.num.messages"] > values["queue.buffering.max.messages"]:
            least = values["batch.num.messages"]
            raise SettingRefused(
                "queue.buffering.max.messages",
                f"{values['queue.buffering.max.messages']} is not allowed: at least "
                f"batch.num.messages, which is {least}",
            )
        for name in ("serializer.class", "partitioner.class", "event.handler"):
            if name not in self.given:
                values[name] = plugin(name, SETTINGS[name].default)
        if values["key.serializer.class"] is None:
            values["key.serializer.class"] = values["serializer.class"]
        self._check_plugins()

    @classmethod
    def from_file(cls, path: str, **keywords: Any) -> ProducerConfig:
        """A file of properties. Raises SettingRefused, OSError, PropertiesError."""
        return cls(dict(read_properties(path)), **keywords)

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def _settle_places(self) -> None:
        given = [name for name in _PLACES if self._values[name]]
        if not given:
            raise SettingRefused(_PLACES[0], "write host:port,host:port")
        if len(given) > 1:
            raise SettingRefused(given[1], f"{given[0]} says already where the brokers are")
        self.seeds: list[tuple[str, int]] = []
        if given[0] != "zk.connect":
            words = [str(word) for word in self._values[given[0]]]
            if given[0] == "broker.list":
                words = [re.sub(r"^\d+:(?=.+:\d+$)", "", word) for word in words]
            try:
                self.seeds = parse_addresses(",".join(words))
            except SettingRefused as error:
                raise SettingRefused(given[0], error.advice) from None

    def _check_plugins(self) -> None:
        made: list[Any] = []
        for name in ("serializer.class", "key.serializer.class", "partitioner.class"):
            one = self._values[name]
            if callable(getattr(one, "init", None)) and not any(one is other for other in made):
                one.init(self)
            made.append(one)
        self.encoder = EncoderOf("serializer.class", self._values["serializer.class"])
        self.key_encoder = EncoderOf("key.serializer.class", self._values["key.serializer.class"])
        self.partition, self.takes_null_keys = partition_function(self._values["partitioner.class"])
        for name, methods in (
            ("event.handler", ("init", "handle", "close")),
            ("callback.handler", ("before_enqueue", "after_enqueue")),
        ):
            for method in methods:
                if self._values[name] is not None and not callable(
                    getattr(self._values[name], method, None)
                ):
                    raise SettingRefused(name, f"{self._values[name]!r} has no {method}")
