"""The metadata log of KRaft: records as Apache Kafka 3.9.1 wrote them, snapshots, damage."""

import pytest
from support.storage.kraft_dirs import (
    ORDERS,
    TOPIC_ID,
    control_batch,
    encoded,
    metadata_batch,
    snapshot,
    write_metadata,
)

from kbroker.adopt import metadata_records as records
from kbroker.adopt.errors import Refusal
from kbroker.adopt.metadata_image import MetadataImage
from kbroker.adopt.metadata_log import read_metadata
from kbroker.adopt.record_codec import UnknownRecord, decode_record, encode_record
from kbroker.protocol.codec import DecodeError

pytestmark = pytest.mark.unit

CODECS_ID = bytes.fromhex("8be1649ade734ae5a452e9531c8ac418")
CUT_ID = bytes.fromhex("8ff0782240a04f1b9c2c5f02e2f571fd")
# Written by Apache Kafka 3.9.1.
GOLDEN = [
    (
        "01020007636f646563738be1649ade734ae5a452e9531c8ac41800",
        0,
        records.TopicRecord(name="codecs", topic_id=CODECS_ID),
    ),
    (
        "010301000000008be1649ade734ae5a452e9531c8ac4180200000001020000000101010000000100000000000"
        "00000020000000000000000000000000000000100",
        1,
        records.PartitionRecord(
            partition_id=0, topic_id=CODECS_ID, replicas=[1], isr=[1], leader=1, leader_epoch=0,
            partition_epoch=0, directories=[bytes(15) + b"\1"],
        ),
    ),
    (
        "010501000000008ff0782240a04f1b9c2c5f02e2f571fd01081102921b3ca5894231dc09cb35c63abcc1d3",
        1,
        records.PartitionChangeRecord(
            partition_id=0,
            topic_id=CUT_ID,
            directories=[bytes.fromhex("921b3ca5894231dc09cb35c63abcc1d3")],
        ),
    ),
    (
        "0104000207636f64656373126d61782e6d6573736167652e6279746573083132333435363700",
        0,
        records.ConfigRecord(
            resource_type=2, resource_name="codecs", name="max.message.bytes", value="1234567"
        ),
    ),
    (
        "010c00116d657461646174612e76657273696f6e001500",
        0,
        records.FeatureLevelRecord(name="metadata.version", feature_level=21),
    ),
    (
        "010f0000000001000000000000000700000000000003e800",
        0,
        records.ProducerIdsRecord(broker_id=1, broker_epoch=7, next_producer_id=1000),
    ),
    (
        "01170001001212426f6f747374726170207265636f726473",
        0,
        records.BeginTransactionRecord(name="Bootstrap records"),
    ),
    ("01180000", 0, records.EndTransactionRecord()),
]  # fmt: skip


@pytest.mark.parametrize(("text", "version", "record"), GOLDEN)
def test_record_of_kafka_is_read_and_written_the_same(text, version, record):
    assert decode_record(bytes.fromhex(text)) == record
    assert encode_record(record, version).hex() == text


@pytest.mark.parametrize(("text", "_version", "_record"), GOLDEN)
def test_truncated_record_is_refused(text, _version, _record):
    data = bytes.fromhex(text)
    for size in range(len(data)):
        with pytest.raises(DecodeError):
            decode_record(data[:size])


def test_record_of_unknown_kind_is_passed_over():
    assert decode_record(bytes.fromhex("01140000")) == UnknownRecord(20, 0)


def test_newer_version_of_a_needed_record_is_refused():
    """Its fields cannot be decoded, and a topic must not go missing."""
    with pytest.raises(DecodeError, match="a newer Kafka"):
        decode_record(b"\x01\x02\x07" + b"\0" * 20)


def image_of(*rows):
    image = MetadataImage()
    for row in rows:
        image.apply(row)
    return image


def test_leader_change_raises_the_epoch_and_keeps_what_it_does_not_name():
    change = records.PartitionChangeRecord(partition_id=0, topic_id=TOPIC_ID, leader=-1)

    (topic,) = image_of(*ORDERS, change).topics.values()

    assert (topic.partitions[0].leader, topic.partitions[0].leader_epoch) == (-1, 5)
    assert topic.partitions[0].replicas == [1]


@pytest.mark.parametrize(("name", "left"), [("", []), ("orders", []), ("others", [1])])
def test_eligible_replicas_are_cleared_for_one_topic_or_all(name, left):
    stopped = records.PartitionChangeRecord(
        partition_id=0, topic_id=TOPIC_ID, isr=[], eligible_leader_replicas=[1]
    )

    image = image_of(*ORDERS, stopped, records.ClearElrRecord(topic_name=name))

    assert image.topics[TOPIC_ID].partitions[0].eligible == left


def test_removed_topic_takes_its_settings_along():
    image = image_of(*ORDERS, records.RemoveTopicRecord(topic_id=TOPIC_ID))

    assert not image.topics
    assert not image.configs


def test_setting_with_null_is_deleted():
    null = records.ConfigRecord(
        resource_type=2, resource_name="orders", name="retention.ms", value=None
    )

    assert image_of(*ORDERS, null).configs == {(2, "orders"): {}}


def test_transaction_counts_when_it_ends():
    begin, end = records.BeginTransactionRecord(), records.EndTransactionRecord()
    other = records.TopicRecord(name="late", topic_id=bytes(16))

    assert len(image_of(*ORDERS, begin, other, end).topics) == 2
    assert len(image_of(*ORDERS, begin, other).topics) == 1
    assert len(image_of(*ORDERS, begin, other, records.AbortTransactionRecord()).topics) == 1


def test_change_of_an_unknown_partition_is_refused():
    with pytest.raises(DecodeError, match="does not exist"):
        image_of(records.PartitionChangeRecord(partition_id=0, topic_id=TOPIC_ID))


def read(directory, was_clean=True):
    return read_metadata(str(directory), was_clean=was_clean)


def test_log_without_snapshot_is_read(tmp_path):
    image = read(write_metadata(tmp_path))

    assert [topic.name for topic in image.topics.values()] == ["orders"]
    assert image.end_offset == 4


def test_log_continues_behind_the_newest_snapshot(tmp_path):
    """The snapshot may end inside a segment: its records must not count twice."""
    path = write_metadata(tmp_path)
    (path / f"{2:020}-{1:010}.checkpoint").write_bytes(b"old")
    (path / f"{4:020}-{1:010}.checkpoint").write_bytes(snapshot(ORDERS))
    (path / f"{9:020}-{1:010}.checkpoint.part").write_bytes(b"torn")
    log = path / f"{0:020}.log"
    change = records.PartitionChangeRecord(partition_id=0, topic_id=TOPIC_ID, leader=1)
    log.write_bytes(log.read_bytes() + metadata_batch(4, [encoded(change)]))

    image = read(path)

    assert image.topics[TOPIC_ID].partitions[0].leader_epoch == 5
    assert image.end_offset == 5


def test_cut_short_snapshot_is_refused(tmp_path):
    path = write_metadata(tmp_path)
    whole = snapshot(ORDERS)
    file = path / f"{4:020}-{1:010}.checkpoint"
    file.write_bytes(whole[: -len(control_batch(0, 4))])

    with pytest.raises(Refusal, match=r"00004-0000000001.checkpoint: the end .* is missing"):
        read(path)


@pytest.mark.parametrize("was_clean", [True, False])
def test_log_with_nothing_in_it_is_refused(tmp_path, was_clean):
    """Otherwise all topics would count as deleted."""
    path = write_metadata(tmp_path)
    (path / f"{0:020}.log").write_bytes(b"")

    with pytest.raises(Refusal, match=r"00000.log is empty"):
        read(path, was_clean)


def test_log_cut_between_two_batches_is_refused_after_a_clean_stop(tmp_path):
    path = write_metadata(tmp_path)
    log = path / f"{0:020}.log"
    (path / f"{4:020}.snapshot").touch()
    assert read(path).end_offset == 4

    log.write_bytes(log.read_bytes()[: -len(metadata_batch(1, map(encoded, ORDERS)))])

    assert read(path, was_clean=False).end_offset == 1
    with pytest.raises(Refusal, match=r"ends at offset 1, but .*00004.snapshot was written at 4"):
        read(path)


def test_missing_snapshot_is_refused(tmp_path):
    path = write_metadata(tmp_path)
    (path / f"{0:020}.log").rename(path / f"{7:020}.log")

    with pytest.raises(Refusal, match="begins at offset 7"):
        read(path)


def test_batch_cut_short_counts_only_after_an_unclean_stop(tmp_path):
    path = write_metadata(tmp_path)
    log = path / f"{0:020}.log"
    log.write_bytes(log.read_bytes()[:-3])

    assert not read(path, was_clean=False).topics
    with pytest.raises(Refusal, match="truncated"):
        read(path)


@pytest.mark.parametrize("was_clean", [True, False])
def test_every_flipped_byte_is_refused_or_changes_nothing(tmp_path, was_clean):
    path = write_metadata(tmp_path)
    log = path / f"{0:020}.log"
    data = bytearray(log.read_bytes())
    expected = read(path).topics[TOPIC_ID].partitions[0].replicas
    for at in range(len(data)):
        data[at] ^= 0x41
        log.write_bytes(data)
        data[at] ^= 0x41
        try:
            image = read(path, was_clean=was_clean)
        except Refusal as error:
            assert str(log) in str(error)
            continue
        if image.topics:
            assert image.topics[TOPIC_ID].partitions[0].replicas == expected


def test_zeros_behind_the_log_are_room_set_aside(tmp_path):
    path = write_metadata(tmp_path)
    log = path / f"{0:020}.log"
    log.write_bytes(log.read_bytes() + bytes(5000))

    assert len(read(path).topics) == 1
