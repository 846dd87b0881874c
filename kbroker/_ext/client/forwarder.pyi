from kbroker._ext.client.accumulator import Accumulator
from kbroker._ext.client.record_futures import RecordFutures
from kbroker._ext.client.record_reader import RecordReader

class Forwarder:
    held: bool
    is_full: bool
    missing: str | None
    records: int
    bytes: int
    whole_records: int
    def __init__(
        self,
        pool: Accumulator,
        *,
        keep_partitions: bool = ...,
        keep_codecs: bool = ...,
        whole_bytes_max: int = ...,
    ) -> None: ...
    def forward(self, reader: RecordReader, topic: str) -> RecordFutures: ...
    def wait_for_room(self, seconds: float) -> None: ...
