"""Topics of one run: created with as many partitions as requested, deleted soon after."""

import sys
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from perf.raw_client import (
    RawClient,
    parse_address,
    wait_for_leaders,
    wait_until_writable,
)
from perf.waiting import wait_until

QUIET = {"log_level": 3, "socket.keepalive.enable": True}


class Subject(Protocol):
    """A broker or a cluster that is loaded."""

    @property
    def name(self) -> str: ...
    @property
    def bootstrap(self) -> str: ...
    @property
    def replicas(self) -> int: ...
    @property
    def topic_timeout_s(self) -> float: ...
    def cpu_seconds(self) -> float: ...
    def wait_until_in_sync(self, topic: str, /) -> object: ...


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
    leaders: dict[int, tuple[str, int]] = {}

    def are_all() -> bool:
        nonlocal leaders
        address = parse_address(bootstrap)
        leaders = wait_for_leaders(address, name, auto_create=False, timeout=timeout)
        return len(leaders) == partitions

    try:
        wait_until(are_all, "", timeout, 0.1)
    except TimeoutError as error:
        if leaders:
            raise ValueError(f"{name} has {len(leaders)} partitions, not {partitions}") from error
        raise
    return leaders


@contextmanager
def topic_of(
    subject: Subject, partitions: int, prefix: str, *, is_written: bool = True
) -> Iterator[tuple[str, dict[int, tuple[str, int]]]]:
    """A topic with a replica on each broker, and its leaders, once all partitions accept records.

    is_written: each partition has a record, by which that was seen.
    """
    name, timeout = fresh_name(prefix), subject.topic_timeout_s
    leaders = create_topic(
        subject.bootstrap, name, partitions,
        replication_factor=subject.replicas, timeout=timeout,
    )  # fmt: skip
    try:
        if is_written:
            wait_until_writable(leaders, name, timeout)
        # By then a follower that is late has left the ISR, or its log is open.
        subject.wait_until_in_sync(name)
        yield name, leaders
    finally:
        delete_topic(subject.bootstrap, name, timeout)


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
