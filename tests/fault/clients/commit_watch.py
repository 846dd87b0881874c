"""What a group has committed, looked at all the time: by confluent-kafka, as in ``feeds``."""

from __future__ import annotations

import threading
import time
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition
from fault.clients.feeds import QUIET

PAUSE_S = 0.4
ASK_S = 2.0


class CommitWatch:
    """lines: what was seen, as those of a program: {"what": "seen", "offsets": [...]}."""

    def __init__(self, bootstrap: str, group: str, topic: str, partitions: int) -> None:
        self.lines: list[dict[str, Any]] = []
        self._keys = [TopicPartition(topic, n) for n in range(partitions)]
        config = {"bootstrap.servers": bootstrap, "group.id": group, **QUIET}
        self._consumer = Consumer({**config, "enable.auto.commit": False})
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(PAUSE_S):
            try:
                rows = self._consumer.committed(self._keys, ASK_S)
            except KafkaException:
                continue
            found = [(row.partition, row.offset) for row in rows if row.offset >= 0]
            self.lines.append({"at": time.monotonic(), "what": "seen", "who": "", "offsets": found})
        self._consumer.close()

    def close(self) -> None:
        """May be called again."""
        self._stop.set()
        self._thread.join(60)
