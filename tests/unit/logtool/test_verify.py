"""``kbroker-log verify`` finds damage in every type of file, and none in intact ones."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.running.sanitizer import measures_memory
from support.storage.log_files import damaged_files, flip, make_partition, run, run_json
from support.storage.log_store import LogStore, append, batch

from kbroker._ext.record.record_batch import stamp_for_append
from kbroker.storage.checkpoint import format_checkpoint, parse_checkpoint
from kbroker.storage.formats import segment_name

pytestmark = pytest.mark.unit


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    return make_partition(tmp_path_factory.mktemp("sound"))


@pytest.fixture
def partition(sound, tmp_path):
    """A copy of the partition in a log directory of its own."""
    shutil.copytree(sound.parent, tmp_path / "logs")
    return tmp_path / "logs" / sound.name


def middle(partition: Path, suffix: str) -> Path:
    """A file of a sealed segment."""
    return sorted(partition.glob(f"*{suffix}"))[1]


def snapshot_of(path: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(file): (file.read_bytes(), file.stat().st_mtime_ns)
        for file in path.rglob("*")
        if file.is_file()
    }


def test_verify_sound_directory_finds_nothing_and_changes_nothing(partition):
    before = snapshot_of(partition.parent)

    code, lines = run_json("verify", partition.parent)

    assert code == 0
    assert [(line["file"], line["level"]) for line in lines] == [
        (str(partition), "ok"), (str(partition.parent), "ok"),
    ]  # fmt: skip
    assert snapshot_of(partition.parent) == before


def test_verify_of_a_log_directory_counts_its_empty_partitions(partition):
    """A broker has fifty of them for the offsets of groups."""
    logs = partition.parent
    for number in range(3):
        (logs / f"empty-{number}").mkdir()
        (logs / f"empty-{number}" / segment_name(0, ".log")).touch()
        assert run("rebuild", logs / f"empty-{number}")[0] == 0

    said = run("verify", logs)[1].splitlines()
    at_length = run("verify", "--verbose", logs)[1].splitlines()
    alone = run("verify", logs / "empty-0")[1].splitlines()
    snapshot = partition / segment_name(0, ".snapshot")
    snapshot.write_bytes(b"\x00\x01")
    damaged = run("verify", logs)

    assert [line.split(": ")[0] for line in said] == [str(partition), str(logs)]
    assert said[-1].startswith(f"{logs}: ok: 4 partitions, 3 empty; ")
    assert len(at_length) == 5
    assert alone == [f"{logs}/empty-0: ok: 1 segment, 0 batches, 0.0 MiB, offsets 0 up to 0"]
    assert damaged[0] == 1
    assert f"{logs}: note: 4 partitions, 1 damaged, 3 empty; " in damaged[1]


def test_verify_sound_segment_alone_finds_nothing(partition):
    for path in sorted(partition.iterdir()):
        code, text = run("verify", path)
        assert code == 0 and ": ok: " in text, (path, text)


@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".txnindex", ".snapshot"])
def test_verify_every_flipped_byte_of_an_index_or_snapshot_is_found(partition, suffix):
    """An index entry with a later batch is valid in Kafka, and only noted."""
    path = middle(partition, suffix)
    original = path.read_bytes()
    assert original
    for at in range(len(original)):
        flip(path, at)
        code, lines = run_json("verify", path)
        noted = any("stand for several batches" in line["message"] for line in lines)
        assert code == 1 or (noted and suffix == ".index"), (at, lines)
        path.write_bytes(original)


@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".txnindex", ".snapshot"])
def test_verify_index_or_snapshot_cut_within_an_entry_is_damaged(partition, suffix):
    path = middle(partition, suffix)
    path.write_bytes(path.read_bytes()[:-1])

    assert damaged_files(partition) == {path.name}


@pytest.mark.parametrize(("suffix", "entry_bytes"), [(".timeindex", 12), (".txnindex", 34)])
def test_verify_last_entry_missing_is_found(partition, suffix, entry_bytes):
    path = middle(partition, suffix)
    path.write_bytes(path.read_bytes()[:-entry_bytes])

    assert damaged_files(partition) == {path.name}


def test_verify_txn_index_removed_is_found(partition):
    path = middle(partition, ".txnindex")
    path.unlink()

    assert damaged_files(partition) == {path.name}


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_verify_index_removed_is_found(partition, suffix):
    path = middle(partition, suffix)
    path.unlink()

    assert damaged_files(partition) == {path.name}


def test_verify_indexes_of_another_segment_are_found(partition):
    first, second = sorted(partition.glob("*.index"))[:2]
    shutil.copy(first, second)

    assert damaged_files(partition) == {second.name}


def test_verify_every_flipped_byte_of_a_batch_is_found(partition):
    """Except for the leader epoch, which no checksum covers; leader-epoch-checkpoint reveals it."""
    path = middle(partition, ".log")
    original = path.read_bytes()
    size = 12 + int.from_bytes(original[8:12], "big")
    for at in [*range(12), *range(16, size)]:
        flip(path, at)
        assert path.name in damaged_files(partition), at
        path.write_bytes(original)


def test_verify_damaged_log_names_position_and_offset(partition):
    path = middle(partition, ".log")
    flip(path, 70)

    _, lines = run_json("verify", partition)

    message = next(line["message"] for line in lines if line["file"] == str(path))
    assert "the checksum does not match at position 0" in message
    assert f"offsets from {int(path.stem)} cannot be read" in message


def test_verify_segment_removed_is_found(partition):
    gone = middle(partition, ".log")
    for path in partition.glob(f"{gone.stem}.*"):
        path.unlink()

    assert sorted(partition.glob("*.log"))[0].name in damaged_files(partition)


def test_verify_segment_cut_at_a_batch_is_found(partition):
    path = middle(partition, ".log")
    path.write_bytes(b"")

    found = damaged_files(partition)

    assert path.name in found
    assert path.with_suffix(".index").name in found


def test_verify_zeros_behind_the_last_batch_are_no_damage(partition):
    with open(sorted(partition.glob("*.log"))[-1], "ab") as file:
        file.write(bytes(1000))

    code, lines = run_json("verify", partition)

    assert code == 0
    assert "nothing but zeros" in lines[0]["message"]


def test_verify_log_that_ends_below_its_recovery_point_is_found(partition):
    path = partition.parent / "recovery-point-offset-checkpoint"
    offsets = parse_checkpoint(path.read_bytes())
    path.write_bytes(format_checkpoint({key: value + 1 for key, value in offsets.items()}))

    assert damaged_files(partition.parent) == {path.name}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("leader-epoch-checkpoint", b"0\n2\n0 0\n"),
        ("leader-epoch-checkpoint", b"0\n2\n3 5\n2 9\n"),
        ("leader-epoch-checkpoint", b"0\n2\n0 0\n1 100000\n"),
        ("txn-index-checkpoint", b"0\n1\n0 x 5\n"),
        ("../replication-offset-checkpoint", b"1\n0\n"),
        ("../log-start-offset-checkpoint", b"0\n1\nt 0 100000\n"),
    ],
)
def test_verify_small_file_that_makes_no_sense_is_found(partition, name, content):
    (partition / name).write_bytes(content)

    assert damaged_files(partition.parent) == {Path(name).name}


def test_verify_partition_metadata_that_makes_no_sense_is_found(partition):
    (partition / "partition.metadata").write_bytes(b"version: 0\ntopic_id: short")

    code, text = run("verify", partition)

    assert code == 1 and "topic_id 'short' is not an id" in text


def test_verify_epoch_of_a_batch_that_the_checkpoint_denies_is_found(tmp_path):
    store = LogStore(tmp_path)
    append(store.open(leader_epoch=4), batch())
    store.stop(clean=True)
    path = store.path("leader-epoch-checkpoint")
    path.write_bytes(b"0\n2\n3 0\n5 1\n")

    assert damaged_files(store.path()) == {path.name}


def test_verify_gap_is_damage_unless_the_log_was_compacted(tmp_path):
    directory = tmp_path / "t-0"
    directory.mkdir()
    data = bytearray()
    for offset in (0, 5):
        stamped = bytearray(batch())
        stamp_for_append(stamped, offset, 0)
        data += stamped
    path = directory / segment_name(0, ".log")
    path.write_bytes(data)
    assert run("rebuild", path)[0] == 0

    assert damaged_files(directory) == {path.name}
    assert run("verify", "--compacted", directory)[0] == 0
    (tmp_path / "cleaner-offset-checkpoint").write_bytes(b"0\n1\nt 0 5\n")
    assert run("verify", directory)[0] == 0


def test_verify_several_paths_says_of_each_what_it_is(partition):
    damaged, sound = (partition / segment_name(0, s) for s in (".snapshot", ".log"))
    damaged.write_bytes(b"\x00\x01")
    checkpoint = partition.parent / "recovery-point-offset-checkpoint"

    code, lines = run_json("verify", damaged, sound, checkpoint)

    assert code == 1
    assert [(line["file"], line["level"]) for line in lines] == [
        (str(damaged), "damage"), (str(sound), "ok"), (str(checkpoint), "ok"),
    ]  # fmt: skip


def test_verify_leftovers_are_noted(partition):
    (partition / (segment_name(0, ".log") + ".deleted")).write_bytes(b"")

    code, lines = run_json("verify", partition)

    assert code == 0
    assert [line["level"] for line in lines] == ["note", "ok"]


def test_verify_a_file_on_its_way_out_is_wrong_usage(partition):
    """It would be mistaken for the segment in use, which is another file."""
    path = partition / (segment_name(0, ".log") + ".deleted")
    path.write_bytes(b"")

    assert run("verify", path) == (2, "")


def test_verify_what_is_no_log_file_is_wrong_usage(tmp_path, capsys):
    (tmp_path / "notes.txt").write_text("hello")

    assert run("verify", tmp_path / "notes.txt")[0] == 2
    assert run("verify", tmp_path / "absent")[0] == 2
    assert run("verify", tmp_path)[0] == 2
    assert "no such file" in capsys.readouterr().err


@measures_memory
def test_verify_large_file_is_streamed(tmp_path):
    """160 MiB of log are checked and dumped in 96 MiB of memory, interpreter included."""
    directory = tmp_path / "big-0"
    directory.mkdir()
    path = directory / segment_name(0, ".log")
    data = bytearray(batch([os.urandom(1 << 20)]))
    with open(path, "wb") as file:
        for offset in range(160):
            stamp_for_append(data, offset, 0)
            file.write(data)
    program = (
        "import re, sys; from kbroker.cli.log import main;"
        "codes = [main([c, sys.argv[1]]) for c in ('rebuild', 'verify', 'dump')];"
        # Of this program alone; ru_maxrss starts with its parent's value.
        "peak = re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1];"
        "print(codes, peak)"
    )

    done = subprocess.run(
        [sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True
    )

    *lines, last = done.stdout.splitlines()
    codes, kib = last.rsplit(" ", 1)
    assert codes == "[0, 0, 0]", done.stdout
    assert sum(line.startswith("baseOffset: ") for line in lines) == 160
    assert int(kib) < 96 << 10
