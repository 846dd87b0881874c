"""Members of groups that run in processes of their own: Java and kcat."""

from __future__ import annotations

import itertools
import re
import signal
import subprocess
import threading
import time
from typing import Any

from support.drivers import WAIT_S
from support.drivers.access import Access, access_to
from support.drivers.java import Java
from support.drivers.members import CLOSE_MARGIN_S, Move, Partition, Subscription, Taken

from kbroker.testing import ProcessEnded, wait_until

ASSIGNORS = {
    "range": "org.apache.kafka.clients.consumer.RangeAssignor",
    "roundrobin": "org.apache.kafka.clients.consumer.RoundRobinAssignor",
    "cooperative-sticky": "org.apache.kafka.clients.consumer.CooperativeStickyAssignor",
    "sticky": "org.apache.kafka.clients.consumer.StickyAssignor",
}
_ids = itertools.count()


class JavaMember:
    """A thread in the JVM of a driver."""

    def __init__(self, java: Java, where: str | Access, wanted: Subscription) -> None:
        self.name = java.name
        self.id = f"member-{next(_ids)}"
        self._java = java
        self._owned: frozenset[Partition] = frozenset()
        self._moves: list[Move] = []
        self._taken: list[Taken] = []
        settings: dict[str, Any] = {
            **access_to(where).java(),
            "group.id": wanted.group,
            "group.protocol": wanted.protocol,
            "enable.auto.commit": "false",
            "auto.offset.reset": "earliest",
            "isolation.level": wanted.isolation,
            "metadata.max.age.ms": 500,
            "fetch.max.wait.ms": 100,
        }
        if wanted.protocol == "classic":
            settings["session.timeout.ms"] = wanted.session_ms
            settings["heartbeat.interval.ms"] = wanted.heartbeat_ms
            settings["partition.assignment.strategy"] = ASSIGNORS[wanted.assignor]
        if wanted.instance:
            settings["group.instance.id"] = wanted.instance
        arguments: dict[str, Any] = {"topics": list(wanted.topics)}
        if wanted.pattern:
            kind = "server_pattern" if wanted.protocol == "consumer" else "pattern"
            arguments[kind] = wanted.pattern
        java.call(
            "member_open",
            id=self.id,
            commit_on_revoke=wanted.commit_on_revoke,
            config={
                name: str(value) for name, value in {**settings, **dict(wanted.config)}.items()
            },
            **arguments,
        )

    def _update(self, seen: dict[str, Any]) -> None:
        self._owned = frozenset((topic, partition) for topic, partition in seen["owned"])
        self._moves += [
            Move(at, kind, frozenset(map(tuple, rows))) for at, kind, rows in seen["moves"]
        ]
        self._taken += [Taken(*row) for row in seen["taken"]]
        if seen["error"]:
            raise RuntimeError(f"{self.name}: {seen['error']}")

    def _drain(self) -> None:
        if self.id:
            self._update(self._java.call("member_drain", id=self.id))

    @property
    def owned(self) -> frozenset[Partition]:
        self._drain()
        return self._owned

    @property
    def moves(self) -> list[Move]:
        self._drain()
        return list(self._moves)

    @property
    def taken(self) -> list[Taken]:
        self._drain()
        return list(self._taken)

    def commit(self) -> None:
        self._java.call("member_commit", id=self.id)

    def close(self) -> None:
        member, self.id = self.id, ""
        self._update(self._java.call("member_close", id=member))


class KcatMember:
    """``kcat -G``. It commits the printed records at its end, and five times a second."""

    name = "kcat"

    def __init__(self, where: str | Access, wanted: Subscription) -> None:
        self._access = access_to(where)
        settings = {
            "session.timeout.ms": wanted.session_ms,
            "heartbeat.interval.ms": wanted.heartbeat_ms,
            "partition.assignment.strategy": wanted.assignor,
            "auto.offset.reset": "earliest",
            "auto.commit.interval.ms": 200,
            "isolation.level": wanted.isolation,
            "fetch.wait.max.ms": 100,
            **({"group.instance.id": wanted.instance} if wanted.instance else {}),
            **dict(wanted.config),
        }
        command = ["kcat", *self._access.kcat(), "-G", wanted.group, "-u", "-f", r"%t %p %o %s\n"]
        for name, value in settings.items():
            command += ["-X", f"{name}={value}"]
        command += [f"^{wanted.pattern}"] if wanted.pattern else list(wanted.topics)
        self._group = wanted.group
        self._owned: frozenset[Partition] = frozenset()
        self._moves: list[Move] = []
        self._taken: list[Taken] = []
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self._readers = [
            threading.Thread(target=work, daemon=True)
            for work in (self._read_records, self._read_moves)
        ]
        for reader in self._readers:
            reader.start()

    def _read_records(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            topic, partition, offset, value = line.rstrip(b"\n").split(b" ", 3)
            self._taken.append(
                Taken(time.monotonic(), topic.decode(), int(partition), int(offset), value.decode())
            )

    def _read_moves(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            found = re.search(r"rebalanced.*: (assigned|revoked|lost): (.*)", line.decode())
            if found is None:
                continue
            rows = re.findall(r"(\S+) \[(\d+)\]", found[2])
            where = frozenset((topic, int(partition)) for topic, partition in rows)
            self._owned = where if found[1] == "assigned" else frozenset()
            self._moves.append(Move(time.monotonic(), found[1], where))

    @property
    def owned(self) -> frozenset[Partition]:
        if self._process.poll() is not None:
            raise ProcessEnded(f"kcat ended with {self._process.returncode}")
        return self._owned

    @property
    def moves(self) -> list[Move]:
        return list(self._moves)

    @property
    def taken(self) -> list[Taken]:
        return list(self._taken)

    def commit(self) -> None:
        """The client commits on its own; the group shows when it has."""
        from confluent_kafka import Consumer, TopicPartition

        ends = {one.where: one.offset + 1 for one in self.taken if one.where in self.owned}
        asker = Consumer({**self._access.librdkafka(), "group.id": self._group})

        def committed() -> bool:
            found = asker.committed([TopicPartition(*where) for where in ends], WAIT_S)
            return all(one.offset >= ends[one.topic, one.partition] for one in found)

        try:
            wait_until(committed, WAIT_S, f"{self.name} has committed {ends}")
        finally:
            asker.close()

    def close(self) -> None:
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise
        for reader in self._readers:
            reader.join(WAIT_S + CLOSE_MARGIN_S)
        assert self._process.stdout is not None and self._process.stderr is not None
        self._process.stdout.close()
        self._process.stderr.close()
        self._moves.append(Move(time.monotonic(), "closed", self._owned))
        self._owned = frozenset()
