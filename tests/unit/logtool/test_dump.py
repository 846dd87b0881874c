"""``kbroker-log dump`` shows the content of a file, with the names of Kafka's tool."""

import os
import shutil
import subprocess
import sys

import pytest
from support.storage.log_files import (
    TRANSACTIONS,
    flip,
    legacy_message,
    make_partition,
    run,
    run_json,
)
from support.storage.log_store import NOW_MS, LogStore, append, batch
from support.storage.message_sets import OldMessage, wrapper_bytes

from kbroker.cli.log import main
from kbroker.coordinator.records import offsets_topic, transaction_topic
from kbroker.logtool.output import ScanProgress
from kbroker.record.builder import BatchBuilder
from kbroker.record.compression import GZIP, LZ4, compress
from kbroker.storage.formats import segment_name

pytestmark = pytest.mark.unit


@pytest.fixture(scope="module")
def partition(tmp_path_factory):
    return make_partition(tmp_path_factory.mktemp("dump"))


def log_file(directory, data):
    path = directory / segment_name(0, ".log")
    path.write_bytes(data)
    return path


def records(path, *options):
    code, lines = run_json("dump", *options, path)
    assert code == 0, lines
    return [line for line in lines if line["type"] == "record"]


def test_dump_directory_shows_every_kind_of_file(partition):
    code, lines = run_json("dump", partition.parent)

    assert code == 0
    assert {line["type"] for line in lines} == {
        "batch", "index", "timeindex", "txnindex", "producer", "epoch", "checkpoint", "txnsum",
        "metadata",
    }  # fmt: skip
    batches = [line for line in lines if line["type"] == "batch"]
    assert len(batches) == 3 * TRANSACTIONS + 3
    assert all(line["isvalid"] for line in batches)
    aborted = [line for line in lines if line["type"] == "txnindex"]
    assert len(aborted) == TRANSACTIONS // 2 + 1
    assert aborted[-1]["firstOffset"] == 0 and aborted[-1]["producerId"] == 5
    (metadata,) = [line for line in lines if line["type"] == "metadata"]
    assert metadata["topicId"] == "AAECAwQFBgcICQoLDA0ODw"
    assert {line["offset"] for line in lines if line["type"] == "checkpoint"} >= {0}


def test_dump_text_names_each_file_and_field(partition):
    path = sorted(partition.glob("*.index"))[0]

    code, text = run("dump", path)

    first, second, *_ = text.splitlines()
    assert code == 0
    assert first == f"Dumping {path}"
    position, size = 0, 0
    for line in run_json("dump", path.with_suffix(".log"))[1]:
        if position > 300:
            break
        position, size, last = line["position"], line["size"], line["lastOffset"]
    assert size
    assert second == f"offset: {last} position: {position}"


def test_dump_without_options_shows_batches_only(partition):
    _, lines = run_json("dump", sorted(partition.glob("*.log"))[0])

    assert {line["type"] for line in lines} == {"batch"}


def test_dump_deep_iteration_shows_records_without_their_content(partition):
    found = records(sorted(partition.glob("*.log"))[0], "--deep-iteration")

    assert [line["offset"] for line in found] == list(range(len(found)))
    assert all("payload" not in line for line in found)
    assert found[0]["sequence"] == 0 and found[0]["valueSize"] == 10
    markers = [line for line in found if "endTxnMarker" in line]
    assert [line["endTxnMarker"] for line in markers[:2]] == ["COMMIT", "ABORT"]
    assert markers[0]["coordinatorEpoch"] == 4


@pytest.mark.parametrize("codec", range(5))
def test_dump_print_data_log_shows_keys_values_and_headers(tmp_path, codec):
    builder = BatchBuilder(codec)
    builder.append(b"caf\xc3\xa9", b"k\xff", NOW_MS, headers=((b"h", b"x"), (b"n", None)))
    builder.append(None, None, NOW_MS + 1)
    path = log_file(tmp_path, builder.build())

    first, second = records(path, "--print-data-log")
    text = run("dump", "--print-data-log", path)[1]

    assert first["payload"] == "café"
    assert first["key"] == {"base64": "a/8="}
    assert first["headers"] == [{"key": "h", "value": "x"}, {"key": "n", "value": None}]
    assert second["payload"] is None and second["valueSize"] == -1
    assert "key: k\\xff payload: café" in text


def test_dump_payload_cannot_write_to_the_terminal(tmp_path):
    path = log_file(tmp_path, batch([b"\x1b[2J\nbaseOffset: 9"]))

    text = run("dump", "--print-data-log", path)[1]

    assert "payload: \\x1b[2J\\nbaseOffset: 9" in text
    assert len(text.splitlines()) == 3


def test_dump_offsets_decoder_shows_commits(tmp_path):
    key = offsets_topic.OffsetCommitKey(group="g", topic="t", partition=3)
    value = offsets_topic.OffsetCommitValue(
        offset=42, leader_epoch=1, metadata="m", commit_timestamp=NOW_MS
    )
    builder = BatchBuilder()
    for content in (value, None):
        coded_key, coded = offsets_topic.RECORDS.encode(key, content)
        builder.append(coded, coded_key, NOW_MS)
    path = log_file(tmp_path, builder.build())

    commit, tombstone = records(path, "--offsets-decoder")

    assert commit["key"] == {"type": "OffsetCommitKey", "group": "g", "topic": "t", "partition": 3}
    assert commit["payload"]["offset"] == 42
    assert commit["payload"]["topic_id"] == "A" * 22
    assert tombstone["payload"] is None


def test_dump_transaction_log_decoder_shows_transactions(tmp_path):
    coded_key, coded = transaction_topic.RECORDS.encode(
        transaction_topic.TransactionLogKey(transactional_id="mine"),
        transaction_topic.TransactionLogValue(producer_id=9, producer_epoch=2),
    )
    builder = BatchBuilder()
    builder.append(coded, coded_key, NOW_MS)
    builder.append(b"what", b"\x00\x63", NOW_MS)
    path = log_file(tmp_path, builder.build())

    known, unknown = records(path, "--transaction-log-decoder")

    assert known["key"]["transactional_id"] == "mine"
    assert known["payload"]["producer_id"] == 9
    assert unknown["undecodable"] == "record type 99"


@pytest.mark.parametrize("magic", [0, 1])
def test_dump_old_formats_show_messages_in_wrappers(tmp_path, magic):
    inner = b"".join(legacy_message(magic, at if magic else 1 + at, b"v%d" % at) for at in range(3))
    path = log_file(
        tmp_path,
        legacy_message(magic, 0, b"plain")
        + legacy_message(magic, 3, compress(GZIP, inner), codec=GZIP),
    )

    found = records(path, "--print-data-log")

    assert [(line["offset"], line["payload"]) for line in found] == [
        (0, "plain"), (1, "v0"), (2, "v1"), (3, "v2"),
    ]  # fmt: skip
    name, timestamp = ("CreateTime", NOW_MS) if magic else ("NoTimestampType", -1)
    assert {line[name] for line in found} == {timestamp}
    assert run("dump", path)[0] == 0


@pytest.mark.parametrize("broken", [True, False])
def test_dump_lz4_of_format_0_is_read_with_either_header_checksum(tmp_path, broken):
    messages = [OldMessage(at, -1, b"k", b"v%d" % at) for at in range(3)]
    path = log_file(tmp_path, wrapper_bytes(0, LZ4, messages, broken_lz4=broken))

    found = records(path, "--print-data-log")

    assert [line["payload"] for line in found] == ["v0", "v1", "v2"]


@pytest.mark.parametrize(
    ("at", "message"),
    [(70, "the checksum does not match"), (16, "message format 67 does not exist"), (8, "bytes")],
)
def test_dump_damaged_batch_is_told_and_exits_with_1(tmp_path, at, message):
    path = log_file(tmp_path, batch() + batch())
    flip(path, at)

    code, text = run("dump", path)

    assert code == 1
    assert "damage" in text and message in text


@pytest.mark.parametrize("magic", [0, 1])
def test_dump_every_flipped_byte_of_an_old_message_is_told(tmp_path, magic):
    """Except the offset in front, which its checksum does not cover."""
    data = legacy_message(magic, 0, compress(GZIP, legacy_message(magic, 0, b"value")), codec=GZIP)
    for at in range(8, len(data)):
        path = log_file(tmp_path, data)
        flip(path, at)
        assert run("dump", "--print-data-log", path)[0] == 1, at


@pytest.mark.parametrize(
    "name",
    [
        segment_name(0, ".index"),
        segment_name(0, ".timeindex"),
        segment_name(0, ".txnindex"),
        segment_name(0, ".snapshot"),
        "leader-epoch-checkpoint",
        "txn-index-checkpoint",
        "partition.metadata",
        "recovery-point-offset-checkpoint",
    ],
)
def test_dump_damaged_file_of_each_kind_exits_with_1(tmp_path, name):
    (tmp_path / name).write_bytes(b"\x00\x01 what is this?\x80\n")

    code, lines = run_json("dump", tmp_path / name)

    assert code == 1
    assert lines[-1]["level"] == "damage"


def test_dump_cut_at_every_byte_never_fails_otherwise(tmp_path):
    data = batch(2, codec=GZIP)
    for size in range(len(data)):
        path = log_file(tmp_path, data + data[:size])
        code, lines = run_json("dump", "--print-data-log", path)
        assert code == (1 if any(data[:size]) else 0)
        assert [line["type"] for line in lines if "type" in line] == ["batch", "record", "record"]


def test_dump_into_a_closed_pipe_ends_with_one_line(tmp_path):
    path = log_file(tmp_path, batch([b"v" * 1000] * 2000))
    program = (
        "import sys; sys.argv[0] = 'kbroker-log'; from kbroker.commands import log; sys.exit(log())"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", program, "dump", "--print-data-log", str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    child.stdout.close()

    errors = child.stderr.read()
    child.stderr.close()

    said = b"kbroker-log: cannot write to standard output: Broken pipe\n"
    assert (child.wait(), errors) == (1, said)


def test_dump_of_a_log_that_a_broker_wrote_and_deleted_is_known(tmp_path):
    store = LogStore(tmp_path)
    append(store.open(), batch())
    store.stop(clean=True)
    path = store.path(segment_name(0, ".log"))
    os.rename(path, f"{path}.deleted")

    assert run_json("dump", f"{path}.deleted")[1][0]["count"] == 1


def test_help_names_commands_examples_and_exit_codes(capsys):
    with pytest.raises(SystemExit) as done:
        main(["--help"])

    text = capsys.readouterr().out
    assert done.value.code == 0
    for word in ("dump", "verify", "rebuild", "examples:", "exit codes:"):
        assert word in text


def test_unknown_command_is_wrong_usage():
    with pytest.raises(SystemExit) as done:
        main(["explode"])

    assert done.value.code == 2


class Screen:
    def __init__(self, is_terminal):
        self.text = ""
        self._is_terminal = is_terminal

    def isatty(self):
        return self._is_terminal

    def write(self, text):
        self.text += text

    def flush(self):
        pass


@pytest.mark.parametrize(("is_terminal", "enabled", "shown"), [
    (True, None, True), (False, None, False), (False, True, True), (True, False, False),
])  # fmt: skip
def test_progress_is_shown_on_a_terminal_or_when_asked_for(is_terminal, enabled, shown):
    times = iter(range(100))
    screen = Screen(is_terminal)
    progress = ScanProgress(enabled, screen, lambda: next(times))
    progress.start(4 << 26)

    advance = progress.walker("a.log", 3 << 26)
    advance()
    advance()
    advance()
    advance()
    progress.finished("a.log", 3 << 26)
    progress.clear()

    assert ("75 % of 256 MiB, a.log" in screen.text) == shown
    assert bool(screen.text) == shown
    assert "100 %" not in screen.text


@pytest.mark.parametrize("suffix", [".deleted", ".cleaned", ".swap"])
def test_dump_of_a_directory_shows_each_record_once(tmp_path, suffix):
    """Segments that a compaction has replaced, or is about to, are not part of the log."""
    store = LogStore(tmp_path)
    append(store.open(), batch())
    store.stop(clean=True)
    log = store.path(segment_name(0, ".log"))
    shutil.copy(log, f"{log}{suffix}")

    for path in (log.parent, store.dirs[0]):
        code, rows = run_json("dump", path)
        assert code == 0
        assert [row["file"] for row in rows if row["type"] == "batch"] == [str(log)]
