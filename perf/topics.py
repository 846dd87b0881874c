"""Topics of one run: created with as many partitions as requested, deleted soon after."""

import sys
import time
import uuid
from collections.abc import Iterable

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from perf.raw_client import RawClient, parse_address, wait_for_leaders

QUIET = {"log_level": 3, "socket.keepalive.enable": True}


def fresh_name(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex[:8]}"


def create_topic(
    bootstrap: str,
    name: str,
    partitions: int,
    config: dict[str, str] | None = None,
    replication_factor: int = 1,
    timeout: float = 30,
) -> dict[int, tuple[str, int]]:
    """Create the topic unless it exists, and wait for its leaders; {partition: address}.

    Raises ValueError if the topic exists with another number of partitions.
    """
    admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
    topic = NewTopic(name, partitions, replication_factor, config=config or {})
    exists_code = 36
    try:
        made = admin.create_topics([topic], operation_timeout=timeout, request_timeout=timeout)
        made[name].result(timeout=timeout)
    except Exception as error:
        code = getattr(error.args[0], "code", None) if error.args else None
        if code is None or code() != exists_code:
            raise
    deadline = time.monotonic() + timeout
    while True:
        leaders = wait_for_leaders(
            parse_address(bootstrap), name, auto_create=False, timeout=timeout
        )
        if len(leaders) == partitions:
            return leaders
        if time.monotonic() > deadline:
            raise ValueError(f"{name} has {len(leaders)} partitions, not {partitions}")
        time.sleep(0.1)


def count_records(bootstrap: str, name: str, partitions: Iterable[int]) -> int:
    """The sum of the partitions' end offsets: the records ever written to the topic."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "perf-count", **QUIET})
    try:
        ends = [
            consumer.get_watermark_offsets(TopicPartition(name, partition), timeout=30)[1]
            for partition in partitions
        ]
    finally:
        consumer.close()
    return sum(ends)


def delete_topic(bootstrap: str, name: str, timeout: float = 30) -> None:
    """Delete the topic, unless the broker has gone: the error that stopped the run is reported
    elsewhere.
    """
    try:
        RawClient(parse_address(bootstrap)).socket.close()
    except OSError as error:
        print(f"the topic {name} is not deleted: {error}", file=sys.stderr)
        return
    admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
    gone = admin.delete_topics([name], operation_timeout=timeout, request_timeout=timeout)
    gone[name].result(timeout=timeout)
