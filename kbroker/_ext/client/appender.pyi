from typing import Any

from kbroker._ext.client.accumulator import Accumulator
from kbroker._ext.client.record_futures import RecordFuture, RecordFutures
from kbroker._ext.client.sent_batch import SentBatch

class Appender(Accumulator):
    def append(
        self,
        topic: str,
        key: Any,
        value: Any,
        headers: Any,
        partition: int | None,
        timestamp: int | None,
    ) -> RecordFuture | None: ...
    def append_many(
        self,
        topic: str,
        values: Any,
        keys: Any,
        headers: Any,
        partition: int | None,
        timestamp: Any,
    ) -> RecordFutures | None: ...
    def append_parts(
        self,
        topic: str,
        values: Any,
        keys: Any,
        headers: Any,
        partition: int | None,
        timestamp: Any,
    ) -> RecordFutures | None: ...
    def append_batch(
        self, topic: str, partition: int, data: Any, records: int, seconds: float
    ) -> SentBatch: ...
