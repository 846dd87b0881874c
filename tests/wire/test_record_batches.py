"""Golden batches of other clients, and hostile ones."""

import pytest
from support.storage import record_oracle

from kbroker._ext.base.crc32c import crc32c
from kbroker._ext.record import record_batch
from kbroker._ext.record.record_batch import check_batch, read_header
from kbroker.batch_errors import BatchStatus, CorruptBatchError
from kbroker.batch_summary import HEADER, HEADER_BYTES
from kbroker.record import compression
from kbroker.record.batch import RecordBatch
from kbroker.record.builder import BatchBuilder

pytestmark = pytest.mark.wire

LIMIT = 1 << 20
CODECS = range(5)
# One record "v" with key "k", timestamp 1000 and a header "h" without a value, from producer 7,
# epoch 3, sequence 11; written field by field from the protocol guide, checksum by the twin.
GOLDEN = bytes.fromhex(
    "0000000000000000"  # base offset
    "0000003d"  # batch length
    "ffffffff"  # leader epoch
    "02"  # magic
    "45f1e271"  # checksum
    "0000"  # attributes
    "00000000"  # last offset delta
    "00000000000003e8"  # first timestamp
    "00000000000003e8"  # max timestamp
    "0000000000000007"  # producer id
    "0003"  # producer epoch
    "0000000b"  # base sequence
    "00000001"  # record count
    "16"  # length 11
    "00"  # record attributes
    "00"  # timestamp delta
    "00"  # offset delta
    "02" "6b"  # key
    "02" "76"  # value
    "02"  # one header
    "02" "68"  # its key
    "01"  # its value, null
)  # fmt: skip


def status_of(data: bytes | bytearray, limit: int = LIMIT, check=None, **options) -> BatchStatus:
    with pytest.raises(CorruptBatchError) as caught:
        (check or check_batch)(data, limit, **options)
    return caught.value.status


def resealed(data: bytes, **fields: int) -> bytearray:
    """``data`` with header fields replaced and a valid checksum."""
    header = read_header(data)._replace(**fields)
    batch = bytearray(HEADER.pack(*header[:13]) + data[HEADER_BYTES:])
    batch[17:21] = crc32c(batch[21:]).to_bytes(4, "big")
    return batch


def with_records(records: bytes, count: int, **fields: int) -> bytearray:
    """An uncompressed batch around these record bytes."""
    fields = {"last_offset_delta": count - 1, **fields}
    fields |= {"record_count": count, "batch_length": HEADER_BYTES - 12 + len(records)}
    return resealed(GOLDEN[:HEADER_BYTES] + records, **fields)


def three_records(codec: int = 0) -> bytes:
    builder = BatchBuilder(codec)
    for i, key in enumerate((b"a", None, b"c")):
        builder.append(b"value %d" % i, key, 1000 + i, [("h", b"1"), ("n", None)])
    return builder.build()


def test_builder_writes_the_golden_bytes():
    builder = BatchBuilder(producer_id=7, producer_epoch=3, base_sequence=11)

    builder.append(b"v", b"k", 1000, [("h", None)])

    assert builder.build().hex() == GOLDEN.hex()


def test_check_of_the_golden_batch_reports_every_field():
    found = check_batch(GOLDEN, LIMIT)

    assert found._asdict() == {
        "base_offset": 0,
        "batch_length": 61,
        "partition_leader_epoch": -1,
        "magic": 2,
        "crc": 0x45F1E271,
        "attributes": 0,
        "last_offset_delta": 0,
        "first_timestamp": 1000,
        "max_timestamp": 1000,
        "producer_id": 7,
        "producer_epoch": 3,
        "base_sequence": 11,
        "record_count": 1,
        "walked_max_timestamp": 1000,
        "walked_max_timestamp_offset_delta": 0,
        "walked_min_timestamp": 1000,
        "keyless_count": 0,
        "uncompressed_bytes": 12,
    }


@pytest.mark.parametrize("codec", CODECS)
def test_kafka_python_batches_are_read_and_written_alike(codec):
    default_records = pytest.importorskip("kafka.record.default_records")
    theirs = default_records.DefaultRecordBatchBuilder(2, codec, True, 7, 3, 11, 1 << 20)
    ours = BatchBuilder(
        codec, producer_id=7, producer_epoch=3, base_sequence=11, transactional=True
    )
    for i in range(50):
        key, value = (None, b"x" * i) if i % 3 else (b"key%d" % i, None)
        timestamp = 1_700_000_000_000 + i * 37 % 11
        theirs.append(i, timestamp, key, value, [("h", b"v" * i), ("n", None)])
        ours.append(value, key, timestamp, [("h", b"v" * i), ("n", None)])
    their_bytes, our_bytes = bytes(theirs.build()), bytearray(ours.build())

    assert RecordBatch(their_bytes).records() == RecordBatch(our_bytes).records()
    theirs_checked = check_batch(their_bytes, LIMIT)
    assert theirs_checked[5:12] == check_batch(our_bytes, LIMIT)[5:12]
    assert theirs_checked.walked_max_timestamp == theirs_checked.max_timestamp
    read_back = list(default_records.DefaultRecordBatch(bytes(our_bytes)))
    assert [(r.offset, r.timestamp, r.key, r.value, list(r.headers)) for r in read_back] == [
        (r.offset, r.timestamp, r.key, r.value, [(k.decode(), v) for k, v in r.headers])
        for r in RecordBatch(our_bytes).records()
    ]
    if codec == 0:
        record_batch.stamp_for_append(our_bytes, 0, theirs_checked.partition_leader_epoch)
        assert our_bytes == their_bytes


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("records", [3, 3000])
def test_aiokafka_batches_are_read(codec, records):
    default_records = pytest.importorskip("aiokafka.record.default_records")
    theirs = default_records.DefaultRecordBatchBuilder(2, codec, 0, -1, -1, -1, 1 << 24)
    for i in range(records):
        theirs.append(i, 1000 + i, b"k", b"value %d" % i * 10, [])
    data = bytes(theirs.build())

    found = check_batch(data, LIMIT)

    assert found.record_count == records
    assert (found.walked_max_timestamp, found.walked_min_timestamp) == (999 + records, 1000)
    assert [r.value for r in RecordBatch(data)] == [b"value %d" % i * 10 for i in range(records)]


@pytest.mark.parametrize("codec", CODECS)
def test_every_truncation_is_typed(codec):
    data = three_records(codec)

    for cut in range(len(data)):
        assert status_of(data[:cut]) is BatchStatus.TRUNCATED


@pytest.mark.parametrize("codec", CODECS)
def test_every_flipped_bit_is_found_or_lies_outside_the_checksum(codec):
    data = three_records(codec)
    base_offset, leader_epoch = range(8), range(12, 16)

    for position in range(len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[position] ^= 1 << bit
            if position in leader_epoch:
                assert check_batch(flipped, LIMIT).record_count == 3
            elif position in base_offset:
                assert status_of(flipped) is BatchStatus.BAD_BASE_OFFSET
                assert check_batch(flipped, LIMIT, stored=True).record_count == 3
            else:
                assert status_of(flipped) in {
                    BatchStatus.BAD_CRC,
                    BatchStatus.BAD_MAGIC,
                    BatchStatus.BAD_LENGTH,
                    BatchStatus.TRUNCATED,
                    BatchStatus.TRAILING_BYTES,
                }


@pytest.mark.parametrize("check", [check_batch, record_oracle.check_batch])
@pytest.mark.parametrize("codec", CODECS)
def test_every_flipped_byte_under_a_right_checksum_gives_only_typed_errors(codec, check):
    """An attacker can compute checksums: the walk and the codecs must be safe on their own."""
    data = three_records(codec)

    for position in range(HEADER_BYTES, len(data)):
        flipped = bytearray(data)
        flipped[position] ^= 0xFF
        flipped[17:21] = crc32c(flipped[21:]).to_bytes(4, "big")
        try:
            found = check(flipped, LIMIT)
        except CorruptBatchError as err:
            assert err.status in {
                BatchStatus.BAD_RECORD,
                BatchStatus.BAD_OFFSET_DELTA,
                BatchStatus.BAD_TIMESTAMP,
                BatchStatus.TRAILING_BYTES,
                BatchStatus.DECOMPRESS_FAILED,
                BatchStatus.TOO_LARGE_DECOMPRESSED,
            }
        else:
            assert found.record_count == 3


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"magic": 1}, BatchStatus.BAD_MAGIC),
        ({"magic": -1}, BatchStatus.BAD_MAGIC),
        ({"batch_length": -1}, BatchStatus.BAD_LENGTH),
        ({"batch_length": 48}, BatchStatus.BAD_LENGTH),
        ({"batch_length": 2**31 - 1}, BatchStatus.TRUNCATED),
        ({"record_count": 0, "last_offset_delta": -1}, BatchStatus.BAD_RECORD_COUNT),
        ({"record_count": -1}, BatchStatus.BAD_RECORD_COUNT),
        ({"record_count": 2}, BatchStatus.BAD_RECORD_COUNT),
        ({"last_offset_delta": 1}, BatchStatus.BAD_RECORD_COUNT),
        (
            {"record_count": 2**31 - 1, "last_offset_delta": 2**31 - 2},
            BatchStatus.BAD_RECORD_COUNT,
        ),
        ({"attributes": 5}, BatchStatus.UNKNOWN_CODEC),
        ({"attributes": 7}, BatchStatus.UNKNOWN_CODEC),
        ({"attributes": 0x20}, BatchStatus.CONTROL_FROM_CLIENT),
        ({"attributes": 0x08}, BatchStatus.BAD_TIMESTAMP),
        ({"base_sequence": -1}, BatchStatus.BAD_SEQUENCE),
        ({"producer_epoch": -1}, BatchStatus.BAD_SEQUENCE),
        ({"base_offset": 1}, BatchStatus.BAD_BASE_OFFSET),
        ({"base_offset": -1}, BatchStatus.BAD_BASE_OFFSET),
        ({"first_timestamp": 2**63 - 1, "attributes": 1}, BatchStatus.DECOMPRESS_FAILED),
    ],
)
def test_header_that_no_client_may_send_is_rejected(fields, status):
    assert status_of(resealed(GOLDEN, **fields)) is status
    assert status_of(resealed(GOLDEN, **fields), check=record_oracle.check_batch) is status


def test_stored_batch_may_be_a_control_batch_of_append_time_with_more_after_it():
    data = resealed(GOLDEN, attributes=0x28, base_sequence=-1)

    assert check_batch(data + b"next", LIMIT, stored=True).record_count == 1
    assert status_of(GOLDEN + b"next") is BatchStatus.TRAILING_BYTES


def test_stored_batch_may_have_gaps_or_no_records_at_all():
    builder = BatchBuilder()
    builder.append(b"a", offset_delta=3)
    builder.append(b"b", offset_delta=7)
    gaps = builder.build()
    emptied = with_records(b"", 0, last_offset_delta=9)

    assert check_batch(gaps, LIMIT, stored=True).last_offset_delta == 7
    assert status_of(gaps) is BatchStatus.BAD_RECORD_COUNT
    found = check_batch(emptied, LIMIT, stored=True)
    assert (found.record_count, found.walked_max_timestamp) == (0, -1)
    assert RecordBatch(emptied).records() == []


@pytest.mark.parametrize(
    ("record", "status"),
    [
        ("0c 00 00 00 01 01 00", None),  # the smallest: null key, null value, no headers
        ("0c 00 00 00 00 00 00", None),  # empty key and value are not null
        ("0a 00 00 00 01 01", BatchStatus.BAD_RECORD_COUNT),  # no room for a record
        ("0a 00 00 00 01 01 00", BatchStatus.BAD_RECORD),  # length below the smallest
        ("0e 00 00 00 01 01 00", BatchStatus.BAD_RECORD),  # longer than the batch
        ("01 00 00 00 01 01 00", BatchStatus.BAD_RECORD),  # negative length
        ("ff ff ff ff 0f 00 00 00 01 01 00", BatchStatus.BAD_RECORD),
        ("ff ff ff ff ff 0f 00 00 01 01 00", BatchStatus.BAD_RECORD),  # overlong length
        ("0c 00 00 02 01 01 00", BatchStatus.BAD_OFFSET_DELTA),
        ("0c 00 00 01 01 01 00", BatchStatus.BAD_OFFSET_DELTA),
        ("0c 00 00 00 03 01 00", BatchStatus.BAD_RECORD),  # key length -2
        ("0c 00 00 00 04 01 00", BatchStatus.BAD_RECORD),  # key over the end
        ("0c 00 00 00 01 03 00", BatchStatus.BAD_RECORD),  # value length -2
        ("0c 00 00 00 01 02 00", BatchStatus.BAD_RECORD),  # value eats the header count
        ("0c 00 00 00 01 01 01", BatchStatus.BAD_RECORD),  # -1 headers
        ("0c 00 00 00 01 01 02", BatchStatus.BAD_RECORD),  # a header that is not there
        ("10 00 00 00 01 01 02 01 01", BatchStatus.BAD_RECORD),  # null header key
        ("10 00 00 00 01 01 02 00 01", None),  # empty header key, null value
        ("10 00 00 00 01 01 02 00 03", BatchStatus.BAD_RECORD),
        ("0e 00 00 00 01 01 00 00", BatchStatus.BAD_RECORD),  # a byte after the headers
        ("0e 00 00 00 01 01 80 00", None),  # zero headers, padded
        ("0c 00 00 00 01 01 00 00", BatchStatus.TRAILING_BYTES),
        ("1e 00 fe ff ff ff ff ff ff ff ff 01 00 01 01 00", BatchStatus.BAD_TIMESTAMP),
        ("1e 00 ff ff ff ff ff ff ff ff ff 01 00 01 01 00", None),  # 1000 - 2**63
        ("1e 00 ff ff ff ff ff ff ff ff ff 02 00 01 01 00", BatchStatus.BAD_RECORD),
    ],
)
@pytest.mark.parametrize("check", [check_batch, record_oracle.check_batch])
def test_record_at_the_edge_of_the_format_is_judged(record, status, check):
    data = with_records(bytes.fromhex(record), 1)

    if status is None:
        assert check(data, LIMIT).record_count == 1
    else:
        assert status_of(data, check=check) is status


def test_false_record_is_named_by_its_index():
    good = bytes.fromhex("0c00000001 0100")
    second = bytes.fromhex("0c00000201 0100")
    bad = bytes.fromhex("0c00000403 0100")

    with pytest.raises(CorruptBatchError) as caught:
        check_batch(with_records(good + second + bad, 3), LIMIT)

    assert (caught.value.status, caught.value.bad_index) == (BatchStatus.BAD_RECORD, 2)


def test_walk_reports_newest_and_oldest_timestamp_and_keyless_records():
    builder = BatchBuilder()
    for timestamp, key in ((50, b"k"), (-1, None), (90, None), (20, b"k"), (90, None)):
        builder.append(b"v", key, timestamp)

    found = check_batch(builder.build(), LIMIT)

    assert (found.walked_max_timestamp, found.walked_max_timestamp_offset_delta) == (90, 2)
    assert found.walked_min_timestamp == 20
    assert found.keyless_count == 3


@pytest.mark.parametrize("stamps", [record_batch, record_oracle])
def test_stamps_change_their_fields_and_keep_the_checksum_right(stamps):
    batch = bytearray(three_records())

    stamps.stamp_for_append(batch, 12345, 6)
    stamps.stamp_max_timestamp(batch, 5000)
    found = check_batch(batch, LIMIT, stored=True)
    assert (found.base_offset, found.partition_leader_epoch) == (12345, 6)
    assert found.max_timestamp == 5000

    stamps.stamp_log_append_time(batch, 777)
    found = check_batch(batch, LIMIT, stored=True)
    assert (found.attributes, found.max_timestamp, found.first_timestamp) == (0x08, 777, 1000)
    assert [r.timestamp for r in RecordBatch(batch)] == [777] * 3


@pytest.mark.parametrize("codec", range(1, 5))
def test_compressed_batch_over_the_budget_is_too_large(codec):
    data = three_records(codec)
    size = len(three_records()) - HEADER_BYTES

    assert check_batch(data, size).uncompressed_bytes == size
    assert status_of(data, size - 1) is BatchStatus.TOO_LARGE_DECOMPRESSED


@pytest.mark.parametrize("codec", range(1, 5))
def test_compressed_stream_of_the_wrong_codec_is_rejected(codec):
    other = codec % 4 + 1
    data = resealed(three_records(codec), attributes=other)

    assert status_of(data) in {BatchStatus.DECOMPRESS_FAILED, BatchStatus.TOO_LARGE_DECOMPRESSED}


def test_unknown_codec_has_no_decoder():
    with pytest.raises(compression.DecompressionError):
        compression.decompress(5, b"", LIMIT)
