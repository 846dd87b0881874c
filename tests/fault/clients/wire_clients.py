"""Programs of the wire client: whole batches, without a thread, each call with a deadline."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from fault.clients.handles import Given
from fault.clients.writers import CLOSE_S, FLUSH_S, PAUSE_S, REST_S, Row, Writer

from kbroker.client.batches.produce import BatchProducer
from kbroker.client.batches.topic_reader import TopicReader
from kbroker.client.connections.cluster import Cluster
from kbroker.client.errors import ClientError
from kbroker.record.builder import BatchBuilder

if TYPE_CHECKING:
    from fault.clients.program import Program

DELIVERY_S = 30.0


def cluster_of(program: Program) -> Cluster:
    settings = {key: value for key, value in program.settings.items() if "transact" not in key}
    options = {name.replace("_", "."): value for name, value in settings.items()}
    return Cluster.from_options(options, client_id="exam")


class WireWriter(Writer):
    """``BatchProducer``: what it has not acknowledged when it fails is open for ever."""

    def __init__(self, program: Program) -> None:
        self._cluster = cluster_of(program)
        super().__init__(program)

    def _made(self) -> Any:
        producer = BatchProducer(
            self._cluster,
            delivery_timeout=DELIVERY_S,
            transactional_id=self.program.settings.get("transactional_id"),
        )
        return Given(self.told, producer)

    def step(self) -> None:
        rows = self._rows()
        self._count(len(rows))
        try:
            self._send_all(rows)
        except ClientError as error:
            for row in rows:
                self._end(row, error, -1)
            self.close()
            self.handle = self._made()
            self.told.tell("replaced")
        else:
            for row in rows:
                self._end(row, None, -1)
        self.tell_ended()

    def _send_all(self, rows: list[Row]) -> None:
        for partition in range(self.program.partitions):
            builder = BatchBuilder()
            part = [row for row in rows if row[0] == partition]
            for row in part:
                builder.append(self.value(row), None, int(time.time() * 1000))
            batch = bytearray(builder.build())
            self.handle.call("send", FLUSH_S, self.program.topic, partition, batch, len(part))
        if not self.program.role.is_transactional:
            self.handle.call("flush", FLUSH_S)

    def rest(self) -> None:
        self.step()

    def close(self) -> None:
        self.handle.call("close", CLOSE_S)

    def finish(self) -> None:
        self.close()
        self._cluster.close()
        self.told.tell("open", count=self._open["records"])


class WireTransactions(WireWriter):
    """Each step is a transaction; every third is aborted."""

    def step(self) -> None:
        self._steps += 1
        rows = self._rows()
        outcome, commit = "unknown", self._steps % 3 != 2
        try:
            self.handle.call("begin", FLUSH_S)
            self._send_all(rows)
            if self._steps % 5 == 0:
                offsets = {(self.program.topic, 0): (self._steps, "")}
                self.handle.call("commit_offsets", FLUSH_S, self.program.group, offsets)
            self.handle.call("end", 2 * FLUSH_S, commit=commit)
            outcome = "committed" if commit else "aborted"
        except ClientError:
            self.close()
            self.handle = self._made()
            self.told.tell("replaced")
        self.told.tell("transaction", rows=rows, outcome=outcome)


def write(program: Program) -> None:
    """Until the program is stopped."""
    writer = (WireTransactions if program.role.is_transactional else WireWriter)(program)
    while program.pause(PAUSE_S):
        writer.step()
    writer.finish()


def read(program: Program) -> None:
    """``TopicReader``, over ``RangeFetch``: to the end of each partition, again and again."""
    cluster = cluster_of(program)
    reader = TopicReader(cluster, {(program.topic, n): 0 for n in range(program.partitions)})
    limit = program.settings["default_api_timeout_ms"] / 1000
    while program.pause(PAUSE_S):
        try:
            ends = program.told.call("ends", limit, reader.ends)
            for key, end in ends.items():
                program.told.call(
                    "read", limit, lambda key=key, end=end: _read(program, reader, {key: end})
                )
        except ClientError:
            program.pause(REST_S if program.resting else PAUSE_S)
    cluster.close()


def _read(program: Program, reader: TopicReader, ends: dict[tuple[str, int], int]) -> None:
    rows = []
    try:
        for row in reader.read(ends):
            rows.append((row.partition, row.offset, (row.value or b"").decode()))
    finally:
        if rows:
            program.told.tell("returned", rows=rows)
