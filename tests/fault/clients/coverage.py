"""Which role meets each public method and each setting of the clients in faults, or why none needs
to. ``tests/fault/test_exam_of_clients.py`` compares this with the classes themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fault.clients.administrators import CALLS
from fault.clients.readers import GROUP_QUESTIONS, QUESTIONS
from fault.clients.roles import ROLES

from kbroker.client import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kbroker.client.admin.admin_settings import SETTINGS as ADMIN_SETTINGS
from kbroker.client.aio import AsyncKafkaConsumer, AsyncKafkaProducer
from kbroker.client.batches.fetch import RangeFetch
from kbroker.client.batches.produce import BatchProducer
from kbroker.client.batches.topic_reader import TopicReader
from kbroker.client.consumer.consumer_settings import SETTINGS as CONSUMER_SETTINGS
from kbroker.client.producer.producer_settings import SETTINGS as PRODUCER_SETTINGS
from kbroker.client.settings.client_settings import ClientSetting
from kbroker.legacy import (
    AsyncProducer,
    OffsetChannel,
    Producer,
    SimpleConsumer,
    SyncProducer,
)
from kbroker.legacy.producer_config import SETTINGS as OLD_PRODUCER_SETTINGS
from kbroker.legacy.zookeeper_consumer.consumer_connector import ConsumerConnector
from kbroker.legacy.zookeeper_consumer.zookeeper_consumer_settings import (
    SETTINGS as ZOOKEEPER_CONSUMER_SETTINGS,
)

CLASSES: tuple[type, ...] = (
    KafkaProducer,
    KafkaConsumer,
    AsyncKafkaProducer,
    AsyncKafkaConsumer,
    KafkaAdminClient,
    BatchProducer,
    RangeFetch,
    TopicReader,
    Producer,
    SyncProducer,
    AsyncProducer,
    SimpleConsumer,
    OffsetChannel,
    ConsumerConnector,
)
SETTINGS: dict[str, Mapping[str, ClientSetting]] = {
    "KafkaProducer": PRODUCER_SETTINGS,
    "KafkaConsumer": CONSUMER_SETTINGS,
    "KafkaAdminClient": ADMIN_SETTINGS,
    "Producer": OLD_PRODUCER_SETTINGS,
    "ConsumerConnector": ZOOKEEPER_CONSUMER_SETTINGS,
}


def _by(roles: Iterable[str], *methods: str) -> dict[str, tuple[str, ...]]:
    return dict.fromkeys(methods, tuple(roles))


_PRODUCERS = ("idempotent producer", "send_many producer")
_MEMBERS = ("cooperative", "consumer protocol")
_OF_TRANSACTIONS = (
    "init_transactions", "begin_transaction", "commit_transaction", "abort_transaction",
    "send_offsets_to_transaction",
)  # fmt: skip
_OF_PRODUCERS = (
    "flush", "close", "metrics", "metrics_by_node", "metrics_by_topic", "partitions_for",
    "client_instance_id",
)  # fmt: skip
_LOOKS = tuple(name for name, *_ in QUESTIONS)
_GROUP_LOOKS = tuple(name for name, *_ in GROUP_QUESTIONS)

# By class and method: the roles that call it.
MET: dict[str, dict[str, tuple[str, ...]]] = {
    "KafkaProducer": {
        **_by(("idempotent producer",), "send"),
        **_by(("send_many producer",), "send_many"),
        **_by(_PRODUCERS, *_OF_PRODUCERS),
        **_by(("transactional producer",), *_OF_TRANSACTIONS),
    },
    "AsyncKafkaProducer": {
        **_by(("asyncio producer",), "send", *_OF_PRODUCERS),
        **_by(("asyncio send_many",), "send_many"),
        **_by(("asyncio transactions",), *_OF_TRANSACTIONS),
    },
    "KafkaConsumer": {
        **_by(("assign poll",), "assign", "poll", "close", *_LOOKS),
        **_by(("assign columns",), "poll_columns"),
        **_by(("assign arrow",), "poll_arrow"),
        **_by(_MEMBERS, "subscribe", "commit_sync", *_GROUP_LOOKS),
    },
    "AsyncKafkaConsumer": {
        **_by(("asyncio assign",), "assign", "poll", "close", *_LOOKS),
        **_by(("asyncio columns",), "poll_columns"),
        **_by(("asyncio member",), "subscribe", "commit", *_GROUP_LOOKS),
    },
    "KafkaAdminClient": _by(("admin",), "close", *CALLS),
    "BatchProducer": {
        **_by(("wire producer", "wire transactions"), "send", "close"),
        **_by(("wire producer",), "flush"),
        **_by(("wire transactions",), "begin", "commit_offsets", "end"),
    },
    "RangeFetch": {},
    "TopicReader": _by(("wire reader",), "ends", "read"),
    "Producer": _by(("0.8 producer", "0.8 queue"), "send", "close"),
    "SyncProducer": {},
    "AsyncProducer": {},
    "SimpleConsumer": _by(
        ("0.8 simple consumer",),
        "topic_metadata", "fetch", "earliest_or_latest_offset", "get_offsets_before",
        "find_coordinator", "close",
    ),
    "OffsetChannel": _by(("0.8 simple consumer",), "commit", "fetch", "close"),
    "ConsumerConnector": _by(
        ("0.8 group",),
        "create_message_streams", "commit_offsets", "lags", "metrics", "shutdown",
    ),
}  # fmt: skip

_STATE = "changes or tells what the client remembers, and asks nobody"
_WITHIN = "a step of another method here: "
# By class and method: why no role calls it.
NOT_MET: dict[str, dict[str, str]] = {
    "KafkaProducer": {
        "append_many": _WITHIN + "send_many",
        "await_topic": _WITHIN + "AsyncKafkaProducer.send",
        "encoded": _WITHIN + "send_many",
        "sending": _WITHIN + "send",
        "is_flushed": _WITHIN + "flush",
        "trouble": _WITHIN + "the texts of timeouts",
        "in_transaction": _STATE,
        "metrics_address": _STATE,
        "forget": _WITHIN + "os.fork, of which there is a fault",
        "forwarder": "of the mirror maker, whose tests have its faults",
    },
    "AsyncKafkaProducer": {
        "client_id": _STATE,
        "metrics_address": _STATE,
        "send_and_wait": "is send, and its future awaited",
        "transaction": "is begin_transaction, and one of its two ends",
    },
    "KafkaConsumer": {
        "commit_async": "tests/integration/test_consumer_interruptions.py has its faults",
        "enforce_rebalance": "asks for what every fault of a coordinator brings",
        "unsubscribe": _WITHIN + "close",
        "seek": _STATE,
        "seek_to_beginning": _STATE,
        "seek_to_end": _STATE,
        "stop_auto_commit": _STATE,
        "metrics_address": _STATE,
        "forget": _WITHIN + "os.fork, of which there is a fault",
        "wakeup": _WITHIN + "AsyncKafkaConsumer, whose calls are cancelled",
        "forget_wakeup": _WITHIN + "AsyncKafkaConsumer, whose calls are cancelled",
        "hurry": _WITHIN + "AsyncKafkaConsumer, whose calls are cancelled",
        "keep": _WITHIN + "AsyncKafkaConsumer, whose calls are cancelled",
        "kept": _WITHIN + "AsyncKafkaConsumer, whose calls are cancelled",
        "forward": "of the mirror maker, whose tests have its faults",
    },
    "AsyncKafkaConsumer": {
        "enforce_rebalance": "asks for what every fault of a coordinator brings",
        "poll_arrow": "is poll_columns with another end",
        "metrics_address": _STATE,
        "seek": _STATE,
        "seek_to_beginning": _STATE,
        "seek_to_end": _STATE,
        "unsubscribe": _WITHIN + "close",
    },
    "KafkaAdminClient": {},
    "BatchProducer": {"identity": _WITHIN + "send"},
    "RangeFetch": {"close": "what TopicReader, loads and Spark read with, iterates and closes it"},
    "TopicReader": {},
    "Producer": {},
    "SyncProducer": dict.fromkeys(
        ("send", "close"),
        "one connection to one broker: tests/integration/test_legacy_clients_broker.py",
    ),
    "AsyncProducer": dict.fromkeys(("enqueue", "send", "close"), "what Producer is with a queue"),
    "SimpleConsumer": {
        "multifetch": "is fetch, of several requests",
        "send": _WITHIN + "topic_metadata and find_coordinator",
        "commit_offsets": _WITHIN + "OffsetChannel.commit",
        "fetch_offsets": _WITHIN + "OffsetChannel.fetch",
    },
    "OffsetChannel": {},
    "ConsumerConnector": {
        "create_message_streams_by_filter": "which topics are read; create_message_streams is met",
    },
}

_SIZE = "an amount, which a fault does not change"
_PLUG_IN = "code of the program; the fault 'callbacks raise' has what it may raise"
_TLS = "logins and TLS have an exam of their own: tools/exam.py security"
_SERVED = "where the process serves what metrics() tells"
_OF_07 = "another name of 0.7 for a setting that is met"
_OLD = "another name of 0.8.2 for a setting that is met"
_TIME = "when something is done that every role does with the default"
_METRICS = ("kbroker.metrics.host", "kbroker.metrics.hosts", "kbroker.metrics.port")
# By class and setting: why no role has it.
UNSET: dict[str, dict[str, str]] = {
    "KafkaProducer": {
        **dict.fromkeys(("max.request.size", "compression.gzip.level"), _SIZE),
        **dict.fromkeys(("compression.lz4.level", "compression.zstd.level"), _SIZE),
        **dict.fromkeys(("receive.buffer.bytes", "send.buffer.bytes"), _SIZE),
        **dict.fromkeys(("key.serializer", "value.serializer"), _PLUG_IN),
        **dict.fromkeys(("partitioner.class", "interceptor.classes"), _PLUG_IN),
        "metric.reporters": _PLUG_IN,
        **dict.fromkeys(("metrics.num.samples", "metrics.sample.window.ms"), _SIZE),
        **dict.fromkeys(("metadata.max.age.ms", "retries"), _TIME),
        **dict.fromkeys(("reconnect.backoff.ms", "reconnect.backoff.max.ms"), _TIME),
        **dict.fromkeys(_METRICS, _SERVED),
        "client.id": "a name",
        "partitioner.ignore.keys": "records of the exam name their partitions",
        "partitioner.adaptive.partitioning.enable": "records of the exam name their partitions",
        **dict.fromkeys(("timeout.ms", "metadata.fetch.timeout.ms"), _OLD),
        "block.on.buffer.full": _OLD,
    },
    "KafkaConsumer": {
        **dict.fromkeys(("fetch.min.bytes", "fetch.max.bytes", "max.partition.fetch.bytes"), _SIZE),
        "receive.buffer.bytes": _SIZE,
        **dict.fromkeys(("metrics.num.samples", "metrics.sample.window.ms"), _SIZE),
        **dict.fromkeys(("key.deserializer", "value.deserializer"), _PLUG_IN),
        **dict.fromkeys(("interceptor.classes", "metric.reporters"), _PLUG_IN),
        **dict.fromkeys(("retry.backoff.ms", "retry.backoff.max.ms"), _TIME),
        **dict.fromkeys(("reconnect.backoff.ms", "reconnect.backoff.max.ms"), _TIME),
        **dict.fromkeys(_METRICS, _SERVED),
        "client.id": "a name",
        "group.remote.assignor": "a name that the coordinator is told",
        "check.crcs": "damaged records are of the exam E3",
        "exclude.internal.topics": "which topics a pattern has",
        "allow.auto.create.topics": "topics of the exam are created by it",
    },
    "KafkaAdminClient": {"client.id": "a name"},
    "Producer": {
        "client.id": "a name",
        **dict.fromkeys(("send.buffer.bytes", "batch.num.messages"), _SIZE),
        **dict.fromkeys(
            ("serializer.class", "key.serializer.class", "partitioner.class"), _PLUG_IN
        ),
        **dict.fromkeys(("event.handler", "callback.handler"), _PLUG_IN),
        "serializer.encoding": _PLUG_IN,
        **dict.fromkeys(
            ("compression.codec", "compressed.topics"), "what is sent, and not whether"
        ),
        "topic.metadata.refresh.interval.ms": _TIME,
        **dict.fromkeys(("queue.time", "batch.size", "broker.list"), _OF_07),
        "zk.connect": "tests/integration/test_producer_by_zookeeper.py has its faults",
    },
    "ConsumerConnector": {
        **dict.fromkeys(("consumer.id", "client.id"), "a name"),
        **dict.fromkeys(("socket.receive.buffer.bytes", "fetch.message.max.bytes"), _SIZE),
        **dict.fromkeys(("fetch.min.bytes", "queued.max.message.chunks"), _SIZE),
        **dict.fromkeys(("auto.commit.interval.ms", "fetch.wait.max.ms"), _TIME),
        **dict.fromkeys(("rebalance.backoff.ms", "refresh.leader.backoff.ms"), _TIME),
        **dict.fromkeys(("offsets.channel.backoff.ms", "zookeeper.connection.timeout.ms"), _TIME),
        **dict.fromkeys(("rebalance.max.retries", "offsets.commit.max.retries"), _TIME),
        "zookeeper.sync.time.ms": _TIME,
        "num.consumer.fetchers": _SIZE,
        "exclude.internal.topics": "which topics a pattern has",
        "partition.assignment.strategy": "tests/interop has both, beside Java's",
    },
}
# What programs of one client use beside it.
USED_BY = {"OffsetChannel": "SimpleConsumer"}
# Set by the exam for each program, or for a fault.
SET_BY_THE_EXAM = ("bootstrap.servers", "group.id", "max.poll.interval.ms")
# The same, of clients of 0.8.
SET_FOR_OLD = {
    "Producer": ("metadata.broker.list",),
    "ConsumerConnector": ("group.id", "zookeeper.connect"),
}


def public(kind: type) -> set[str]:
    """Methods and properties of a class."""
    return {name for name in dir(kind) if not name.startswith("_")}


def set_by_roles(kind: str) -> set[str]:
    """The settings that some role of a class, or of its asyncio twin, has."""
    found: set[str] = set(SET_FOR_OLD.get(kind, SET_BY_THE_EXAM))
    for role in ROLES.values():
        if role.client.removeprefix("Async") == kind:
            found |= {name.replace("_", ".") for name in role.settings}
    return found


def _everything_met(client: str) -> Mapping[str, tuple[str, ...]]:
    found = dict(MET.get(client, {}))
    for name, of in USED_BY.items():
        if of == client:
            found |= MET[name]
    return found


def to_meet(role: str) -> set[str]:
    """The methods that a role must have called by its end."""
    methods = _everything_met(ROLES[role].client)
    return {name for name, roles in methods.items() if role in roles}
