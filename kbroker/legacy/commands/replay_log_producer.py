"""``kafka-replay-log-producer`` of Kafka 0.8: writes keys and values of a topic to another one."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kbroker.cli.kafka.options import Given, flag, valued
from kbroker.cli.kafka.running import Tool, ToolFailed, check_bootstrap, pairs, properties_of
from kbroker.cli.kafka.zookeeper import ZOOKEEPER, registered

if TYPE_CHECKING:
    from kbroker.client import KafkaProducer

# A thread ends when it has read nothing for so long, as in 0.8.
_SILENT_S = 10.0
_POLL_RECORDS = 5000

OPTIONS = (
    valued("broker-list", "hostname:port", "Brokers to write to; required."),
    valued("inputtopic", "input-topic", "The topic to read, from its beginning; required."),
    valued("outputtopic", "output-topic", "The topic to write to; required."),
    valued("messages", "count", "How many records each thread writes, -1: all.", kind=int,
           default="-1"),
    valued("reporting-interval", "size", "Has no effect, as in 0.8.", kind=int, default="5000"),
    valued("threads", "threads", "How many share the partitions.", kind=int, default="1"),
    flag("sync", "Wait for the acknowledgement of each record before the next."),
    valued("property", "producer properties", "A setting of the producer, key=value; may be "
           "repeated."),
    ZOOKEEPER._replace(text="The ZooKeeper of the brokers to read from, host:port/chroot; without "
                       "it those of --broker-list."),
    valued("command-config", "config file", "A file with settings of clients."),
)  # fmt: skip


def _run(given: Given) -> int:
    given.require("broker-list", "inputtopic", "outputtopic")
    check_bootstrap(given.one("broker-list"))
    if given.one("threads") < 1:
        raise ToolFailed("--threads must be at least 1")
    from kbroker.cli.kafka.client_options import known_only, log_to_stderr
    from kbroker.client import KafkaConsumer, KafkaProducer
    from kbroker.client.consumer.consumer_settings import SETTINGS as OF_CONSUMERS
    from kbroker.client.errors import ClientError, SettingRefused
    from kbroker.client.producer.producer_settings import SETTINGS as OF_PRODUCERS

    log_to_stderr()
    path = given.one("command-config")
    common = properties_of(path) if path else {}
    source = registered(given) if "zookeeper" in given else given.one("broker-list")
    reads = common | {"bootstrap.servers": source, "client.id": "replay-log-producer"}
    writes = common | pairs(given.all("property")) | {"bootstrap.servers": given.one("broker-list")}
    try:
        with KafkaConsumer(known_only(reads, OF_CONSUMERS)) as consumer:
            numbers = sorted(consumer.partitions_for(given.one("inputtopic")))
        with KafkaProducer(known_only(writes, OF_PRODUCERS)) as producer:
            return _replay(given, known_only(reads, OF_CONSUMERS), numbers, producer)
    except (SettingRefused, ClientError) as error:
        raise ToolFailed(str(error)) from error


def _replay(
    given: Given, reads: dict[str, str], numbers: Sequence[int], producer: KafkaProducer
) -> int:
    count = min(given.one("threads"), len(numbers))
    parts = [
        _PartitionReplay(
            given, reads, [(given.one("inputtopic"), n) for n in numbers[at::count]], producer
        )
        for at in range(count)
    ]
    threads = [threading.Thread(target=part.run, daemon=True) for part in parts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    producer.flush()
    for part in parts:
        print(f"Sent {part.sent} messages", file=sys.stderr)
    errors = [error for part in parts for error in part.errors]
    if errors:
        raise ToolFailed(f"{len(errors)} records were not written: {errors[0]}")
    return 0


class _PartitionReplay:
    """What one thread does. sent: how many records. errors: why some were not written."""

    def __init__(
        self,
        given: Given,
        reads: dict[str, str],
        partitions: list[tuple[str, int]],
        producer: KafkaProducer,
    ) -> None:
        self._topic = given.one("outputtopic")
        self._most: int = given.one("messages")
        self._sync = "sync" in given
        self._reads = reads
        self._partitions = partitions
        self._producer = producer
        self.sent = 0
        self.errors: list[BaseException] = []

    def run(self) -> None:
        try:
            self._copy()
        except BaseException as error:
            self.errors.append(error)

    def _copy(self) -> None:
        from kbroker.client import KafkaConsumer

        with KafkaConsumer(self._reads) as consumer:
            consumer.assign(self._partitions)
            consumer.seek_to_beginning(*self._partitions)
            heard = time.monotonic()
            while self._most < 0 or self.sent < self._most:
                columns = consumer.poll_columns(0.5, _POLL_RECORDS)
                rows = [row for some in columns for row in zip(some.keys, some.values, strict=True)]
                if rows:
                    heard = time.monotonic()
                    self._send(rows)
                elif time.monotonic() - heard >= _SILENT_S:
                    return

    def _send(self, rows: list[tuple[Any, Any]]) -> None:
        if self._most >= 0:
            del rows[self._most - self.sent :]
        for key, value in rows:
            future = self._producer.send(self._topic, value, key)
            if self._sync:
                future.result()
            else:
                future.add_done_callback(self._note)
        self.sent += len(rows)

    def _note(self, future: Any) -> None:
        error = future.exception()
        if error is not None:
            self.errors.append(error)


TOOL = Tool("Write the keys and values of a topic to another one.", OPTIONS, _run)
