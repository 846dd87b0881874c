import pytest

from kbroker.batch_errors import BatchStatus, CorruptBatchError
from kbroker.record import compression
from kbroker.record.batch import Record, RecordBatch, iterate_batches
from kbroker.record.builder import BatchBuilder

pytestmark = pytest.mark.unit


def batch_of(*values: bytes, **options) -> bytes:
    builder = BatchBuilder(**options)
    for value in values:
        builder.append(value)
    return builder.build()


def test_batch_exposes_its_header_without_reading_records():
    data = batch_of(b"a", b"b", base_offset=100, transactional=True, control=True)

    batch = RecordBatch(b"...." + data, 4)

    assert (batch.base_offset, batch.last_offset, batch.next_offset) == (100, 101, 102)
    assert (batch.record_count, batch.size, batch.codec) == (2, len(data), compression.NONE)
    assert batch.is_transactional and batch.is_control and not batch.is_append_time
    assert batch.delete_horizon_ms is None
    assert bytes(batch.data) == data


def test_batch_with_delete_horizon_has_it_in_the_first_timestamp():
    builder = BatchBuilder()
    builder.append(b"v", timestamp=4000)
    data = bytearray(builder.build())
    data[22] |= 0x40

    assert RecordBatch(data).delete_horizon_ms == 4000


def test_append_time_batch_gives_every_record_the_time_of_the_append():
    builder = BatchBuilder(append_time_ms=9000)
    for timestamp in (1, 2):
        builder.append(b"v", timestamp=timestamp)

    batch = RecordBatch(builder.build())

    assert batch.max_timestamp == 9000
    assert [record.timestamp for record in batch] == [9000, 9000]


def test_null_and_empty_stay_apart():
    builder = BatchBuilder()
    builder.append(None, b"", headers=[("h", None), ("e", b"")])
    builder.append(b"", None)

    first, second = RecordBatch(builder.build())

    assert first == Record(0, -1, b"", None, ((b"h", None), (b"e", b"")))
    assert second == Record(1, -1, None, b"")


def test_records_of_damaged_bytes_raise_the_typed_error():
    data = bytearray(batch_of(b"abc"))
    data[61] = 0x7E

    with pytest.raises(CorruptBatchError) as caught:
        RecordBatch(data).records()
    assert caught.value.status is BatchStatus.BAD_RECORD
    with pytest.raises(CorruptBatchError) as caught:
        RecordBatch(data).check()
    assert caught.value.status is BatchStatus.BAD_CRC


def test_iterate_batches_walks_all_and_raises_at_a_cut_tail():
    data = batch_of(b"a") + batch_of(b"b", base_offset=1) + batch_of(b"c", base_offset=2)

    assert [batch.base_offset for batch in iterate_batches(data)] == [0, 1, 2]
    assert [b.base_offset for b in iterate_batches(data[:-1], partial_tail=True)] == [0, 1]
    with pytest.raises(CorruptBatchError):
        list(iterate_batches(data[:-1]))


def test_iterate_batches_raises_at_garbage_even_where_a_cut_is_fine():
    with pytest.raises(CorruptBatchError):
        list(iterate_batches(batch_of(b"a") + bytes(100), partial_tail=True))


def test_builder_rejects_an_empty_batch_and_falling_offsets():
    builder = BatchBuilder()
    with pytest.raises(ValueError, match="at least one"):
        builder.build()
    builder.append(b"a", offset_delta=5)

    with pytest.raises(ValueError, match="below 6"):
        builder.append(b"b", offset_delta=5)
    assert builder.append(b"b") == 6


def test_builder_counts_bytes_as_they_come():
    builder = BatchBuilder()
    before = builder.records_bytes

    builder.append(b"x" * 100)

    assert before == 0
    assert len(builder.build()) == 61 + builder.records_bytes
