"""The roles of the exam of clients: which of them there are, and with which settings.

A role is a small program (``program.py``) that uses a client in one way for as long as the exam
wants. The lists of methods are what the program calls; that it has called them is checked.
"""

from __future__ import annotations

from typing import Any, NamedTuple

WRITES, READS, ADMINISTERS, COPIES = "writes", "reads", "administers", "copies"
CLIENTS = (
    "KafkaProducer", "KafkaConsumer", "AsyncKafkaProducer", "AsyncKafkaConsumer",
    "KafkaAdminClient",
)  # fmt: skip
# What not every cluster has; SEPARATE: settings that are not those of our clients.
ZOOKEEPER, CONSUMER_PROTOCOL, SEPARATE = "ZooKeeper", "the consumer protocol", "no login"

# Short enough that a cell takes half a minute: a broker is replaced after six seconds.
_WAITS = {"request_timeout_ms": 4_000, "socket_connection_setup_timeout_ms": 2_000}
_WRITER = {**_WAITS, "delivery_timeout_ms": 30_000, "max_block_ms": 10_000, "linger_ms": 2}
_READER = {
    **_WAITS,
    "default_api_timeout_ms": 10_000,
    "auto_offset_reset": "earliest",
    "fetch_max_wait_ms": 200,
    "metadata_max_age_ms": 5_000,
}
_MEMBER = {**_READER, "enable_auto_commit": False}
_CLASSIC = {**_MEMBER, "session_timeout_ms": 6_000, "heartbeat_interval_ms": 500}


class Role(NamedTuple):
    """does: writes, reads or administers. client: the class. once: a record that was acknowledged
    or returned is there once, as long as the program lives. members: how many programs share a
    group; 0: without one. way: the call that reads or sends. program: the module and function that
    use the client. needs: what not every cluster has.
    """

    does: str
    client: str
    settings: dict[str, Any]
    way: str
    once: bool = True
    members: int = 0
    program: str = ""
    needs: tuple[str, ...] = ()

    @property
    def is_ours(self) -> bool:
        """Whether it is a program of the three clients, in which mishaps are made."""
        return self.client in CLIENTS

    @property
    def is_of_leaders(self) -> bool:
        """Whether a leader alone acknowledges (acks=1)."""
        return 1 in (self.settings.get("acks"), self.settings.get("request_required_acks"))

    @property
    def commits(self) -> bool:
        """Whether a group of the cell's name has offsets."""
        return self.members > 0 or self.is_transactional or self.client == "SimpleConsumer"

    @property
    def ends_alone(self) -> bool:
        """Whether what is left at its end, and its use of the processor, are of our making."""
        return self.client != "Spark"

    @property
    def is_async(self) -> bool:
        return self.client.startswith("Async")

    @property
    def is_transactional(self) -> bool:
        return "transactional_id" in self.settings


def _writer(way: str, client: str = "KafkaProducer", once: bool = True, **more: Any) -> Role:
    return Role(WRITES, client, {**_WRITER, **more}, way, once, program="writers.write")


def _reader(way: str, client: str = "KafkaConsumer", **more: Any) -> Role:
    return Role(READS, client, {**_READER, **more}, way, program="readers.read")


def _member(way: str, client: str = "KafkaConsumer", members: int = 2, **more: Any) -> Role:
    classic = more.get("group_protocol") != "consumer"
    return Role(
        READS,
        client,
        {**(_CLASSIC if classic else _MEMBER), **more},
        way,
        members=members,
        program="readers.read",
        needs=() if classic else (CONSUMER_PROTOCOL,),
    )


def _old_writer(**more: Any) -> Role:
    settings = {
        "request_timeout_ms": 4_000, "message_send_max_retries": 8, "retry_backoff_ms": 200, **more
    }  # fmt: skip
    return Role(
        WRITES,
        "Producer",
        settings,
        "send",
        once=False,
        program="old_clients.write",
        needs=(SEPARATE,),
    )


_WIRE = {**_WAITS, "default_api_timeout_ms": 10_000}
_COOPERATIVE = {"partition_assignment_strategy": "cooperative-sticky"}
_COMMITTED = {"isolation_level": "read_committed"}
# Set for each program: the value is a name for it.
_TRANSACTIONS = {"transactional_id": "?", "transaction_timeout_ms": 20_000}

ROLES: dict[str, Role] = {
    "plain producer": _writer(
        "send", once=False, acks="all", enable_idempotence=False, compression_type="gzip",
        retry_backoff_ms=50, retry_backoff_max_ms=500,
    ),
    "acks-1 producer": _writer(
        "send", once=False, acks=1, max_in_flight_requests_per_connection=1, buffer_memory=1 << 20,
    ),
    "idempotent producer": _writer(
        "send", batch_size=4_096, enable_idempotence=True, enable_metrics_push=True
    ),
    "transactional producer": _writer("send", **_TRANSACTIONS),
    "send_many producer": _writer("send_many", compression_type="lz4"),
    "asyncio producer": _writer("send", "AsyncKafkaProducer"),
    "asyncio send_many": _writer("send_many", "AsyncKafkaProducer"),
    "asyncio transactions": _writer("send", "AsyncKafkaProducer", **_TRANSACTIONS),
    "assign poll": _reader("poll", max_poll_records=50, enable_metrics_push=True),
    "assign columns": _reader("poll_columns"),
    "assign arrow": _reader("poll_arrow"),
    "read_committed": _reader("poll", **_COMMITTED),
    "by rack": _reader("poll", client_rack="2"),
    "classic eager": _member("poll", partition_assignment_strategy="range"),
    "cooperative": _member("poll", **_COOPERATIVE),
    "cooperative columns": _member("poll_columns", **_COOPERATIVE),
    "static": _member("poll", group_instance_id="?"),
    "consumer protocol": _member("poll", group_protocol="consumer"),
    "consumer protocol arrow": _member("poll_arrow", group_protocol="consumer"),
    "automatic commits": _member(
        "poll", members=1, enable_auto_commit=True, auto_commit_interval_ms=500
    ),
    "asyncio assign": _reader("poll", "AsyncKafkaConsumer"),
    "asyncio columns": _reader("poll_columns", "AsyncKafkaConsumer"),
    "asyncio member": _member("poll", "AsyncKafkaConsumer", members=1),
    "admin": Role(
        ADMINISTERS,
        "KafkaAdminClient",
        {"request_timeout_ms": 4_000, "default_api_timeout_ms": 8_000},
        "each",
        program="administrators.administer",
    ),
    "wire producer": Role(
        WRITES, "BatchProducer", _WIRE, "send", once=False, program="wire_clients.write"
    ),
    "wire transactions": Role(
        WRITES, "BatchProducer", {**_WIRE, "transactional_id": "?"}, "send",
        program="wire_clients.write",
    ),
    "wire reader": Role(READS, "TopicReader", _WIRE, "read", program="wire_clients.read"),
    "0.8 producer": _old_writer(producer_type="sync", request_required_acks=-1),
    "0.8 queue": _old_writer(
        producer_type="async", request_required_acks=1, queue_buffering_max_ms=50,
        queue_buffering_max_messages=20_000, queue_enqueue_timeout_ms=0,
    ),
    "0.8 simple consumer": Role(
        READS, "SimpleConsumer", {}, "fetch", program="old_clients.read", needs=(SEPARATE,)
    ),
    "0.8 group": Role(
        READS,
        "ConsumerConnector",
        {
            "auto_offset_reset": "smallest", "auto_commit_enable": False,
            "offsets_storage": "kafka", "dual_commit_enabled": False, "consumer_timeout_ms": 300,
            "zookeeper_session_timeout_ms": 6_000, "socket_timeout_ms": 4_000,
            "offsets_channel_socket_timeout_ms": 4_000,
        },
        "iterate",
        once=False,
        members=2,
        program="old_clients.read_as_member",
        needs=(ZOOKEEPER, SEPARATE),
    ),
    "kbroker mirror": Role(
        COPIES, "kbroker mirror", {}, "from", once=False, program="pipelines.mirror",
        needs=(SEPARATE,),
    ),
    "kafka-mirror-maker": Role(
        COPIES, "kafka-mirror-maker", {}, "to", once=False, program="pipelines.mirror_maker",
        needs=(SEPARATE,),
    ),
    "load": Role(READS, "kbroker-load", {}, "files", program="pipelines.load", needs=(SEPARATE,)),
    "spark": Role(READS, "Spark", {}, "stream", program="pipelines.spark", needs=(SEPARATE,)),
}  # fmt: skip
