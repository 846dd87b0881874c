"""Files of record batches that are small enough to be read whole."""

from __future__ import annotations

from kbroker.adopt.errors import Refusal
from kbroker.batch_errors import BatchStatus, CorruptBatchError
from kbroker.record.batch import RecordBatch

COPY_AGAIN = (
    "copy the directory again while Kafka is stopped; if this is Kafka's own directory, start "
    "and stop Kafka once, which repairs or names the damage"
)
_SOME = 64


def batches_of(path: str, *, partial_tail: bool) -> list[RecordBatch]:
    """The batches of a file, with valid checksums; zeros at its end are preallocated space.

    partial_tail: a last batch may be cut short: it was never acknowledged. Raises Refusal, OSError.
    """
    with open(path, "rb") as file:
        data = memoryview(file.read())
    batches = []
    position = 0
    while position < len(data):
        if not any(data[position : position + _SOME]) and not any(data[position:]):
            break
        try:
            batch = RecordBatch(data, position)
            batch.check()
        except CorruptBatchError as error:
            if partial_tail and error.status is BatchStatus.TRUNCATED:
                break
            raise Refusal(f"{path}: {error} at position {position}; {COPY_AGAIN}") from error
        batches.append(batch)
        position += batch.size
    return batches
