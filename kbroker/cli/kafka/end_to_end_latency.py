"""``kafka-e2e-latency``: how long a record takes from a producer to a consumer."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Any

from kbroker.cli.kafka.client_options import known_only, log_to_stderr
from kbroker.cli.kafka.options import Given, WrongUse, valued
from kbroker.cli.kafka.running import BOOTSTRAP, Tool, ToolFailed, properties_of

if TYPE_CHECKING:
    from kbroker.client.consumer.kafka_consumer import KafkaConsumer
    from kbroker.client.producer.kafka_producer import KafkaProducer

_TIMEOUT_S = 60.0
_POSITIONAL = (
    "bootstrap-server", "topic", "num-records", "producer-acks", "record-size", "command-config",
)  # fmt: skip
_REPORT_EVERY = 1000

OPTIONS = (
    BOOTSTRAP._replace(argument="bootstrap-server"),
    valued("topic", "topic", "The topic, which is created if it is not there; required."),
    valued("num-records", "num-records", "How many records; required.", kind=int),
    valued("producer-acks", "producer-acks", "Who must have a record: 1 or all; required."),
    valued("record-size", "record-size", "Bytes of each value; required.", kind=int),
    valued("record-key-size", "record-key-size", "Bytes of each key.", kind=int, default="0"),
    valued("record-header-key-size", "size", "Bytes of a header's name.", kind=int, default="0"),
    valued("record-header-size", "size", "Bytes of a header; -1: null.", kind=int, default="0"),
    valued("num-headers", "num-headers", "How many headers.", kind=int, default="0"),
    valued("command-config", "config-file", "A file with settings of the clients."),
)


def _named(given: Given) -> Given:
    """What is given, by names also where Kafka before 4.2 had places. Raises WrongUse."""
    if not given.rest:
        return given
    if not 5 <= len(given.rest) <= 6:
        raise WrongUse(
            f"Invalid number of arguments. Expected 5 or 6 positional arguments, but got "
            f"{len(given.rest)}. Usage: bootstrap-server topic num-records producer-acks "
            "record-size [optional] command-config"
        )
    print(
        "WARNING: Positional argument usage is deprecated and will be removed in Apache Kafka 5.0. "
        "Please use named arguments instead: --bootstrap-server, --topic, --num-records, "
        "--producer-acks, --record-size, --command-config"
    )
    words = []
    for name, value in zip(_POSITIONAL, given.rest, strict=False):
        words += [f"--{name}", value] if value else []
    return Given(OPTIONS, words)


def _check(given: Given) -> None:
    """Raises WrongUse."""
    given.require("bootstrap-server", "topic", "num-records", "producer-acks", "record-size")
    if given.one("producer-acks") not in ("1", "all"):
        raise WrongUse(
            "Invalid value for --producer-acks. Latency testing requires synchronous "
            "acknowledgement. Please use '1' or 'all'."
        )
    if given.one("num-records") <= 0:
        raise WrongUse("Value for --num-records must be a positive integer.")
    for name in ("record-size", "record-key-size", "record-header-key-size", "num-headers"):
        if given.one(name) < 0:
            raise WrongUse(f"Value for --{name} must be a non-negative integer.")
    if given.one("record-header-size") < -1:
        raise WrongUse(
            "Value for --record-header-size must be a non-negative integer or -1 for null header "
            "value."
        )


def _run(given: Given) -> int:
    given = _named(given)
    _check(given)
    path = given.one("command-config")
    settings = properties_of(path) if path else {}
    settings["bootstrap.servers"] = given.one("bootstrap-server")
    from kbroker.client.consumer.consumer_settings import SETTINGS as OF_CONSUMERS
    from kbroker.client.consumer.kafka_consumer import KafkaConsumer
    from kbroker.client.errors import ClientError, SettingRefused
    from kbroker.client.producer.kafka_producer import KafkaProducer
    from kbroker.client.producer.producer_settings import SETTINGS as OF_PRODUCERS

    log_to_stderr()
    reads = settings | {
        "group.id": f"test-group-{time.time_ns() // 1_000_000}",
        "enable.auto.commit": "false",
        "auto.offset.reset": "latest",
        "fetch.max.wait.ms": "0",
    }
    writes = settings | {"linger.ms": "0", "acks": given.one("producer-acks")}
    if writes["acks"] == "1":
        writes.setdefault("enable.idempotence", "false")
    try:
        with (
            KafkaConsumer(known_only(reads, OF_CONSUMERS)) as consumer,
            KafkaProducer(known_only(writes, OF_PRODUCERS)) as producer,
        ):
            _measure(given, consumer, producer, settings)
    except (SettingRefused, ClientError) as error:
        raise ToolFailed(str(error)) from error
    return 0


def _measure(
    given: Given, consumer: KafkaConsumer, producer: KafkaProducer, settings: dict[str, str]
) -> None:
    topic, count = given.one("topic"), given.one("num-records")
    if topic not in consumer.list_topics():
        _create(topic, settings)
    partitions = [(topic, number) for number in consumer.partitions_for(topic)]
    consumer.assign(partitions)
    consumer.seek_to_end(*partitions)
    for partition in partitions:
        consumer.position(partition)
    chosen = random.Random(0)
    times_ms: list[float] = []
    for number in range(count):
        record = _record(given, chosen)
        began = time.perf_counter()
        producer.send(topic, **record).result(_TIMEOUT_S)
        records = consumer.poll(_TIMEOUT_S)
        times_ms.append((time.perf_counter() - began) * 1000)
        _compare(record, records)
        if number % _REPORT_EVERY == 0:
            print(f"{number}\t{times_ms[-1]}")
    print(f"Avg latency: {sum(times_ms) / count:.4f} ms")
    times_ms.sort()
    at = [int(times_ms[int(count * part)]) for part in (0.5, 0.99, 0.999)]
    print(f"Percentiles: 50th = {at[0]}, 99th = {at[1]}, 99.9th = {at[2]}")


def _create(topic: str, settings: dict[str, str]) -> None:
    from kbroker.client.admin.topics import NewTopic, create_topics
    from kbroker.client.connections.cluster import Cluster

    print(
        f'Topic "{topic}" does not exist. Will create topic with 1 partition(s) and replication '
        "factor = 1"
    )
    with Cluster.from_options(settings) as cluster:
        result = create_topics(cluster, [NewTopic(topic, 1, 1)])[topic]
    if isinstance(result, Exception):
        print(f"Creation of topic {topic} failed")
        raise result


def _record(given: Given, chosen: random.Random) -> dict[str, Any]:
    """As ``send`` takes it."""

    def some(size: int) -> bytes:
        return bytes([65 + chosen.randrange(26)]) * size

    key_size, header_size = given.one("record-key-size"), given.one("record-header-size")
    headers = [
        (
            some(given.one("record-header-key-size")).decode(),
            None if header_size < 0 else some(header_size),
        )
        for _ in range(given.one("num-headers"))
    ]
    value = some(given.one("record-size"))
    return {"value": value, "key": some(key_size) if key_size else None, "headers": headers}


def _compare(sent: dict[str, Any], records: list[Any]) -> None:
    """Raises ToolFailed unless exactly this record was read."""
    if not records:
        raise ToolFailed(
            f"poll() timed out before finding a result (timeout:[{_TIMEOUT_S * 1000:.0f}ms])"
        )
    row = records[0]
    for name, read in (("value", row.value), ("key", row.key)):
        if read != sent[name]:
            raise ToolFailed(
                f"The message {name} read [{read!r}] did not match the message {name} sent "
                f"[{sent[name]!r}]"
            )
    if list(row.headers) != sent["headers"]:
        raise ToolFailed("The message headers read did not match those sent")
    if len(records) != 1:
        raise ToolFailed(
            f"Only one result was expected during this test. We found [{len(records)}]"
        )


TOOL = Tool(
    "This tool measures end-to-end latency in Kafka by sending messages and timing their "
    "reception.",
    OPTIONS,
    _run,
    usage_errors=True,
)
