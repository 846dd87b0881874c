"""A producer that writes on and on, while a test stops, kills or changes brokers."""

from __future__ import annotations

import threading
from itertools import count
from typing import Any

from kafka import KafkaProducer

from kbroker.testing import wait_until

PATIENCE_S = 60


class Writing:
    """A producer that writes on and on to partitions in turn, one record after the other."""

    def __init__(self, bootstrap: str, topic: str, partitions: int = 1, **options: Any) -> None:
        self.acknowledged: list[str] = []
        self._topic = topic
        self._partitions = partitions
        self._options = {"bootstrap_servers": bootstrap, "acks": "all", **options}
        self._ending = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._write)

    def _write(self) -> None:
        producer = KafkaProducer(**self._options)
        try:
            for number in count():
                if self._ending.is_set():
                    return
                text = f"{number:06}"
                partition = number % self._partitions
                producer.send(self._topic, text.encode(), partition=partition).get(120)
                self.acknowledged.append(text)
        except BaseException as error:
            self._error = error
        finally:
            producer.close(timeout=10)

    def wait_for_more(self, wanted: int) -> None:
        """Until that many more are acknowledged."""
        before = len(self.acknowledged)
        wait_until(
            lambda: self._error or len(self.acknowledged) >= before + wanted,
            PATIENCE_S,
            "records are written",
        )
        assert self._error is None, f"{self._error!r}"

    def __enter__(self) -> Writing:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ending.set()
        self._thread.join()
        assert self._error is None, f"{self._error!r}"
