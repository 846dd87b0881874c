"""Members of groups of kbroker's own consumer."""

from __future__ import annotations

from typing import Any

from support.drivers import WAIT_S, ClientError
from support.drivers.members import Partition, ThreadMember

from kbroker.client import KafkaConsumer
from kbroker.client import errors as client_errors


class KbrokerMember(ThreadMember):
    """Both protocols, all assignors."""

    name = "kbroker"

    def _open(self) -> None:
        wanted = self.subscription
        settings: dict[str, Any] = {
            "bootstrap.servers": self.access.bootstrap,
            "group.id": wanted.group,
            "group.protocol": wanted.protocol,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": wanted.isolation,
            "metadata.max.age.ms": 500,
            "fetch.max.wait.ms": 100,
        }
        if wanted.protocol == "classic":
            settings["session.timeout.ms"] = wanted.session_ms
            settings["heartbeat.interval.ms"] = wanted.heartbeat_ms
            settings["partition.assignment.strategy"] = wanted.assignor
        if wanted.instance:
            settings["group.instance.id"] = wanted.instance
        self.consumer = KafkaConsumer({**settings, **dict(wanted.config)})
        member = self

        class Listener:
            on_partitions_assigned = staticmethod(member._assigned)
            on_partitions_revoked = staticmethod(member._revoked)
            on_partitions_lost = staticmethod(member._lost)

        if wanted.pattern:
            self.consumer.subscribe(pattern=wanted.pattern, listener=Listener())
        else:
            self.consumer.subscribe(wanted.topics, listener=Listener())

    def _assigned(self, partitions: Any) -> None:
        super()._assigned(tuple(one) for one in partitions)

    def _revoked(self, partitions: Any) -> None:
        super()._revoked(tuple(one) for one in partitions)

    def _lost(self, partitions: Any) -> None:
        super()._lost(tuple(one) for one in partitions)

    def _poll(self, timeout_s: float) -> None:
        try:
            for record in self.consumer.poll(timeout_s):
                self._take(record.topic, record.partition, record.offset, record.value)
        except client_errors.UnreachableError:
            pass  # a broker that is being restarted

    def _commit(self, offsets: dict[Partition, int]) -> None:
        try:
            self.consumer.commit_sync(offsets, WAIT_S)
        except client_errors.ClientError as raised:
            raise ClientError(int(raised.code or -1), str(raised)) from raised

    def _close(self) -> None:
        self.consumer.close()
