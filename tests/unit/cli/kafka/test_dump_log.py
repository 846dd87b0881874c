"""``kafka-dump-log``: every kind of file, decoders, and what is wrong with files."""

from __future__ import annotations

import re

import pytest
from support.storage.log_files import TRANSACTIONS, flip, legacy_message, make_partition
from support.storage.log_store import LogStore, append, batch

from kbroker.cli.kafka import table
from kbroker.cli.kafka.dump_records import decoder
from kbroker.coordinator.records import offsets_topic, transaction_topic
from kbroker.protocol import codec
from kbroker.protocol.messages.consumer_protocol import ConsumerProtocolSubscription

pytestmark = pytest.mark.unit

FIRST = "00000000000000000000"


@pytest.fixture
def dump(capsys):
    """Runs the tool; (exit code, stdout, stderr)."""

    def run(*words):
        code = table.main([str(word) for word in words], "kafka-dump-log")
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def files_of(directory) -> str:
    suffixes = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")
    return ",".join(str(path) for path in sorted(directory.iterdir()) if path.suffix in suffixes)


def test_every_file_of_a_partition_is_shown(tmp_path, dump):
    code, text, errors = dump("--files", files_of(make_partition(tmp_path)), "--deep-iteration")

    assert (code, errors) == (0, "")
    assert text.count("endTxnMarker: COMMIT coordinatorEpoch: 4") == TRANSACTIONS // 2
    for pattern in (
        r"Dumping \S+/00000000000000000000\.log\nLog starting offset: 0\nbaseOffset: 0 lastOffset: "
        r"1 count: 2 baseSequence: 0 lastSequence: 1 producerId: 5 .* isTransactional: true "
        r"isControl: false deleteHorizonMs: OptionalLong.empty position: 0 CreateTime: \d+ size: "
        r"\d+ magic: 2 compresscodec: none crc: \d+ isvalid: true\n\| offset: 0 CreateTime: ",
        r"(?m)^offset: \d+ position: \d+$",
        r"(?m)^timestamp: \d+ offset: \d+$",
        r"(?m)^version: 0 producerId: 6 firstOffset: \d+ lastOffset: \d+ lastStableOffset: \d+$",
        r"(?m)^producerId: 7 .* currentTxnFirstOffset: OptionalLong\[\d+\] lastTimestamp: \d+ ",
    ):
        assert re.search(pattern, text), pattern


def test_data_is_printed_with_and_without_the_metadata_of_records(tmp_path, dump):
    store = LogStore(tmp_path)
    log = store.open()
    append(log, batch([b"gr\xc3\xbc\xc3\x9fe"], key=b"k"))
    append(log, batch([b"\0\0\0\7"], key=None))
    store.stop(clean=True)
    path = store.path() / f"{FIRST}.log"

    _, text, _ = dump("--files", path, "--print-data-log")
    assert re.search(r"\| offset: 0 .* headerKeys: \[\] key: k payload: grüße\n", text)
    assert re.search(r"\| offset: 1 .* headerKeys: \[\] payload: ", text)
    _, text, _ = dump("--files", path, "--print-data-log", "--skip-record-metadata")
    assert "\n| key: k payload: grüße\n" in text
    wanted = ("--value-decoder-class", "kafka.serializer.IntegerDecoder", "--skip-record-metadata")
    flip(path, 0, 0)  # nothing
    code, text, errors = dump("--files", path, *wanted)
    assert code == 1 and "IntegerDeserializer is not 4" in errors


def test_torn_end_is_reported_unless_less_is_wanted(tmp_path, dump):
    path = tmp_path / f"{FIRST}.log"
    whole = legacy_message(1, 0, b"a") + legacy_message(1, 1, b"b")
    path.write_bytes(whole + legacy_message(1, 2, b"c")[:-1])

    assert f"Found 34 invalid bytes at the end of {FIRST}.log" in dump("--files", path)[1]
    code, text, _ = dump("--files", path, "--max-bytes", "40")
    assert (code, text.count("magic: 1"), "invalid" in text) == (0, 1, False)
    path.write_bytes(whole + bytes(100))
    code, text, errors = dump("--files", path)
    assert (code, text.count("magic: 1")) == (1, 2)
    assert "record size 0 smaller than minimum record overhead (14) at position 70" in errors


def test_indexes_are_compared_with_their_log(tmp_path, dump):
    directory = make_partition(tmp_path)
    index, times = directory / f"{FIRST}.index", directory / f"{FIRST}.timeindex"
    assert dump("--files", f"{index},{times}", "--verify-index-only") == (
        0,
        f"Dumping {index}\nDumping {times}\n",
        "",
    )
    assert f"{index} passed sanity check.\n" in dump("--files", index, "--index-sanity-check")[1]
    flip(index, 3, 1)  # the offset of the first entry
    flip(times, 7, 1)  # the time of the first entry

    code, _, errors = dump("--files", f"{index},{times}", "--verify-index-only")

    assert code == 0
    assert f"Mismatches in :{index}" in errors and "Index offset: " in errors
    assert f"Found timestamp mismatch in :{times}" in errors


def test_indexed_batch_that_is_larger_than_allowed_is_an_error(tmp_path, dump):
    """As in Kafka, whose tool reads so many bytes where an entry of an index points to."""
    directory = make_partition(tmp_path)
    index = directory / f"{FIRST}.index"

    code, _, errors = dump("--files", index, "--verify-index-only", "--max-message-size", "10")

    assert code == 1
    assert "has no batch of at most 10 bytes at position" in errors


def test_gaps_and_unknown_files_are_named(tmp_path, dump):
    path = tmp_path / f"{FIRST}.log"
    path.write_bytes(legacy_message(1, 0, b"a") + legacy_message(1, 5, b"b"))
    (tmp_path / "notes.txt").write_text("x")

    code, _, errors = dump("--files", f"{path},{tmp_path / 'notes.txt'}", "--deep-iteration")

    assert code == 0
    assert f"Non-consecutive offsets in {path}\n  0 is followed by 5" in errors
    assert f"Ignoring unknown file {tmp_path / 'notes.txt'}" in errors


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--files", "/nowhere/00000000000000000000.log"], "No such file or directory"),
        (["--files", "x.log"], "begins with its base offset"),
        (["--deep-iteration"], 'Missing required argument "[files]"'),
        (["--files", f"{FIRST}.log", "--cluster-metadata-decoder"], "writes no such records"),
        (["--files", f"{FIRST}.log", "--key-decoder-class", "a.B"], "no decoder a.B here"),
    ],
)
def test_wrong_use_of_dump_log_is_refused(dump, words, said):
    code, _, errors = dump(*words)

    assert code == 1
    assert said in errors


def subscription(version: int) -> bytes:
    body = codec.encode(ConsumerProtocolSubscription(topics=["t"]), version)
    return version.to_bytes(2, "big") + bytes(body)


def test_records_of_groups_are_json():
    decode = decoder("offsets")
    records = offsets_topic.RECORDS
    key = offsets_topic.OffsetCommitKey(group="g", topic="t", partition=1)
    value = offsets_topic.OffsetCommitValue(offset=5, metadata="m", commit_timestamp=7)

    assert decode(*records.encode(key, value), 0) == (
        '{"type":"1","data":{"group":"g","topic":"t","partition":1}}',
        '{"version":"3","data":{"offset":5,"leaderEpoch":-1,"metadata":"m","commitTimestamp":7}}',
    )
    assert decode(records.encode(key, None)[0], None, 0)[1] == "<DELETE>"
    member = offsets_topic.GroupMetadataValue.MemberMetadata(
        member_id="m", subscription=subscription(0), assignment=b"x"
    )
    group = offsets_topic.GroupMetadataValue(protocol_type="consumer", members=[member])
    key = offsets_topic.GroupMetadataKey(group="g")
    text = decode(*records.encode(key, group), 0)[1]
    assert '"subscription":{"topics":["t"],"userData":null},"assignment":"eA=="' in text
    assert decode(b"\0\x63", None, 9) == ("Unknown record type 99 at offset 9, skipping.", None)
    assert decode(b"\0\1\0", b"", 9)[0].startswith("Error at offset 9, skipping. ")


def test_records_of_transactions_are_json():
    key = transaction_topic.TransactionLogKey(transactional_id="pays")
    row = transaction_topic.TransactionLogValue.PartitionsSchema(topic="t", partition_ids=[0, 2])
    value = transaction_topic.TransactionLogValue(
        producer_id=7, transaction_status=1, transaction_partitions=[row], next_producer_epoch=3
    )

    key_text, text = decoder("transactions")(*transaction_topic.RECORDS.encode(key, value), 0)

    assert key_text == '{"type":"0","data":{"transactionalId":"pays"}}'
    assert text == (
        '{"version":"1","data":{"producerId":7,"producerEpoch":0,"nextProducerEpoch":3,'
        '"transactionTimeoutMs":0,"transactionStatus":1,"transactionPartitions":[{"topic":"t",'
        '"partitionIds":[0,2]}],"transactionLastUpdateTimestampMs":0,'
        '"transactionStartTimestampMs":0}}'
    )
