"""Files of a log are truncated, flipped, emptied and removed; then it is opened again.

Promise: nothing with a bad checksum is ever served; what was synced is served whole or the
partition is offline with the reason logged, never shorter; what was not synced is a prefix; a
damaged index costs no record. What is not slow takes one byte of several.
"""

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from support.storage.log_store import NOW_MS, LogStore, append, batch, stored_values

from kbroker._ext.shared.partition_table import OFFLINE, ONLINE
from kbroker.storage.log.log_lookup import list_offsets

pytestmark = pytest.mark.fault

EACH_BYTE = pytest.mark.parametrize("stride", [7, pytest.param(1, marks=pytest.mark.slow)])

CONFIG = {"segment.bytes": 400, "index.interval.bytes": 60, "segment.index.bytes": 4096}
SYNCED_END = 12
END = 18
ACTIVE = "00000000000000000015.log"
SYNCED_SEGMENT = "00000000000000000005.log"


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """Records 0-11 synced and checkpointed, 12-17 only in the page cache; several segments."""
    store = LogStore(tmp_path_factory.mktemp("template"))
    log = store.open(**CONFIG)
    for offset in range(END):
        data = batch([b"value-%d" % offset], producer_id=3, producer_epoch=0, base_sequence=offset)
        append(log, data, NOW_MS)
        if offset == SYNCED_END - 1:
            log.flush()
            store.manager.checkpoint()
            saved = [
                (path, path.read_bytes())
                for path in Path(store.dirs[0]).iterdir()
                if path.is_file()
            ]
    store.stop(clean=False)
    for path, data in saved:
        path.write_bytes(data)
    assert [s.name for s in sorted(store.path().glob("*.log"))][-1] == ACTIVE
    return Path(store.dirs[0])


@pytest.fixture
def fast_path(tmp_path):
    """A directory in memory if there is one: hundreds of trials sync to it."""
    if not os.path.isdir("/dev/shm"):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as path:
        yield Path(path)


class Trial:
    """A copy of the template that is damaged and opened."""

    def __init__(self, template: Path, path: Path) -> None:
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()
        shutil.copytree(template, path / "logs-0")
        self.directory = path / "logs-0"
        self.root = path

    @classmethod
    def copy_of(cls, other: "Trial", path: Path) -> "Trial":
        return cls(other.directory, path)

    def file(self, name: str) -> Path:
        top = self.directory / name
        return top if top.exists() else self.directory / "t-0" / name

    def open(self, *, clean: bool = False):
        store = LogStore(self.root)
        store.start(clean=clean)
        return store, store.try_open(**CONFIG)


EXPECTED = [(offset, b"value-%d" % offset) for offset in range(END)]


def check(trial: Trial, *, may_be_offline: bool, lost_from: int = 0, clean: bool = False) -> None:
    """lost_from: the first offset that may be missing, if any may."""
    store, log = trial.open(clean=clean)
    try:
        if log is None:
            assert may_be_offline, store.manager.offline_reason(0)
            assert store.slot()["state"] == OFFLINE
            return
        assert store.slot()["state"] == ONLINE
        found = stored_values(log)
        assert found == EXPECTED[: len(found)]
        assert len(found) >= lost_from
        assert append(log, batch([b"next"])) == len(found)
        for offset in range(len(found)):
            assert log.segments.locate(offset)[0] is not None
        assert list_offsets(log, NOW_MS)["offset"] == 0
    finally:
        store.stop(clean=False)


@EACH_BYTE
def test_active_log_cut_at_every_byte_keeps_every_whole_batch(template, fast_path, stride):
    whole = (template / "t-0" / ACTIVE).read_bytes()
    size = len(whole) // 3

    for length in {*range(0, len(whole), stride), *range(0, len(whole) + 1, size)}:
        trial = Trial(template, fast_path / "trial")
        trial.file(ACTIVE).write_bytes(whole[:length])
        check(trial, may_be_offline=False, lost_from=15 + length // size)


@pytest.mark.parametrize("tail", [b"\0" * 5000, b"\0" * 3, b"garbage" * 40, b"\xff" * 61])
def test_active_log_with_a_tail_that_is_no_batch_loses_nothing(template, fast_path, tail):
    trial = Trial(template, fast_path / "trial")
    with trial.file(ACTIVE).open("ab") as file:
        file.write(tail)

    check(trial, may_be_offline=False, lost_from=END)


@EACH_BYTE
def test_unsynced_log_with_any_bit_flipped_is_cut_there_at_most(template, fast_path, stride):
    whole = (template / "t-0" / ACTIVE).read_bytes()
    size = len(whole) // 3

    for at in range(0, len(whole), stride):
        for bit in range(8) if at % size < 61 else (at % 8,):
            trial = Trial(template, fast_path / "trial")
            trial.file(ACTIVE).write_bytes(flipped(whole, at, bit))
            # The leader epoch is outside every check; a wrong one loses no record.
            check(trial, may_be_offline=False, lost_from=15 + at // size)


def test_synced_log_with_any_bit_flipped_is_offline_or_whole(template, fast_path):
    """The segment that holds the recovery point is walked in full: damage below it is never cut."""
    name = "00000000000000000010.log"
    whole = (template / "t-0" / name).read_bytes()
    size = len(whole) // 5

    for at in range(0, 2 * size, 3):
        trial = Trial(template, fast_path / "trial")
        trial.file(name).write_bytes(flipped(whole, at, at % 8))
        in_epoch = 12 <= at % size < 16
        store, log = trial.open()
        store.stop(clean=False)
        assert (log is None) != in_epoch, at
        assert trial.file(name).read_bytes() == flipped(
            whole, at, at % 8
        )  # every byte is still there


@pytest.mark.parametrize("cut", [0, 1, 70, 71])
def test_synced_sealed_log_that_is_short_is_offline(template, fast_path, cut):
    trial = Trial(template, fast_path / "trial")
    path = trial.file(SYNCED_SEGMENT)
    path.write_bytes(path.read_bytes()[:cut])

    store, log = trial.open()

    assert log is None
    assert "synced" in store.manager.offline_reason(0) or "ends at" in store.manager.offline_reason(
        0
    )
    assert trial.file("quarantine.txt").exists()
    store.stop(clean=False)


@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("first, second", [(0, 5), (0, 10), (5, 10), (5, 15)])
def test_segments_that_have_each_others_names_are_offline(
    template, fast_path, first, second, clean
):
    """With their indexes or without: no error escapes, no record is at another's offset."""
    trial = Trial(template, fast_path / "trial")
    for suffix in (".log", ".index", ".timeindex"):
        one, other = (trial.file(f"{base:020}{suffix}") for base in (first, second))
        data = one.read_bytes()
        one.write_bytes(other.read_bytes())
        other.write_bytes(data)
        for delta in range(2):
            again = Trial.copy_of(trial, fast_path / f"copy-{delta}")
            if delta:
                again.file("recovery-point-offset-checkpoint").write_text("0\n1\nt 0 18\n")
            store, log = again.open(clean=clean)
            if log is not None and not clean:
                assert stored_values(log) == EXPECTED[: log.log_end_offset]
            assert store.manager.dirs.all_online
            store.stop(clean=False)


def test_synced_sealed_log_that_is_gone_is_offline(template, fast_path):
    trial = Trial(template, fast_path / "trial")
    trial.file(SYNCED_SEGMENT).unlink()

    check(trial, may_be_offline=True, lost_from=END)


def test_quarantined_log_is_checked_again_after_a_clean_stop_and_heals(template, fast_path):
    trial = Trial(template, fast_path / "trial")
    path = trial.file(SYNCED_SEGMENT)
    whole = path.read_bytes()
    path.write_bytes(whole[:100])
    store, log = trial.open()
    assert log is None
    store.stop(clean=True)

    store, log = trial.open(clean=True)
    assert log is None
    store.stop(clean=True)
    path.write_bytes(whole)

    check(trial, may_be_offline=False, lost_from=END, clean=True)
    assert not trial.file("quarantine.txt").exists()


def test_quarantined_log_is_given_up_by_lowering_its_recovery_point(template, fast_path):
    """The remedy described in docs/formats/log-directory.md."""
    trial = Trial(template, fast_path / "trial")
    path = trial.file(SYNCED_SEGMENT)
    path.write_bytes(path.read_bytes()[:100])
    store, log = trial.open()
    assert log is None
    named = int(store.manager.offline_reason(0).split("offsets from ")[1].split()[0])
    store.stop(clean=False)
    trial.file("recovery-point-offset-checkpoint").write_text(f"0\n1\nt 0 {named}\n")

    store, log = trial.open()

    assert named == 6
    assert stored_values(log) == EXPECTED[:named]
    assert append(log, batch([b"next"])) == named
    store.stop(clean=False)


def flipped(data: bytes, at: int, bit: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]


REDUNDANT = [".index", ".timeindex", ".snapshot"]


@EACH_BYTE
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("suffix", REDUNDANT)
def test_redundant_file_damaged_in_any_way_costs_no_record(
    fast_path, template, suffix, clean, stride
):
    source = clean_copy(template, fast_path / "source") if clean else template
    names = sorted(path.name for path in (source / "t-0").glob(f"*{suffix}"))
    assert names

    for name in names:
        whole = (source / "t-0" / name).read_bytes()
        damaged = [
            None,
            b"",
            whole + b"\0" * 16,
            whole + b"x",
            b"\xff" * len(whole),
            whole[: len(whole) // 2],
        ]
        damaged += [flipped(whole, at, at % 8) for at in range(0, min(len(whole), 64), stride)]
        for content in damaged:
            trial = Trial(source, fast_path / "trial")
            if content is None:
                trial.file(name).unlink()
            else:
                trial.file(name).write_bytes(content)
            check(trial, may_be_offline=False, lost_from=END, clean=clean)


def clean_copy(template: Path, path: Path) -> Path:
    trial = Trial(template, path)
    store, _ = trial.open()
    store.stop(clean=True)
    return trial.directory


@EACH_BYTE
@pytest.mark.parametrize(
    "name",
    [
        "recovery-point-offset-checkpoint",
        "log-start-offset-checkpoint",
        "replication-offset-checkpoint",
        "leader-epoch-checkpoint",
        "partition.metadata",
    ],
)
def test_small_file_damaged_in_any_way_never_shortens_the_log(fast_path, template, name, stride):
    """A flipped digit of an offset looks like another offset: offline is correct, truncated is
    not.
    """
    whole = Trial(template, fast_path / "look").file(name).read_bytes()
    damaged = [None, b"", b"\n", whole * 2, whole[:-1], b"\xff" * len(whole)]
    bits = range(0, 8 * len(whole), stride)
    damaged += [flipped(whole, bit // 8, bit % 8) for bit in bits]

    for content in damaged:
        trial = Trial(template, fast_path / "trial")
        if content is None:
            trial.file(name).unlink()
        else:
            trial.file(name).write_bytes(content)
        check_not_shorter(trial)


def check_not_shorter(trial: Trial) -> None:
    store, log = trial.open()
    try:
        if log is None:
            return
        found = stored_values(log)
        start = log.log_start_offset
        if Path(log.path).name == "t-0" and found:
            assert found == EXPECTED[start:]
        else:
            # The topic id changed: the old directory is set aside, whole.
            kept = list(trial.directory.glob("*-stray"))
            assert kept or start > END
    finally:
        store.stop(clean=False)


def test_log_without_a_recovery_checkpoint_is_checked_from_its_start(template, fast_path):
    trial = Trial(template, fast_path / "trial")
    trial.file("recovery-point-offset-checkpoint").unlink()
    path = trial.file("00000000000000000000.log")
    path.write_bytes(flipped(path.read_bytes(), 70, 1))

    store, log = trial.open()

    assert stored_values(log) == []
    store.stop(clean=False)


@pytest.mark.parametrize("suffix", [".deleted", ".cleaned", ".tmp"])
def test_leftover_files_are_removed(template, fast_path, suffix):
    trial = Trial(template, fast_path / "trial")
    leftover = trial.directory / "t-0" / f"00000000000000000099.log{suffix}"
    leftover.write_bytes(b"x" * 100)

    check(trial, may_be_offline=False, lost_from=END)

    assert not leftover.exists()


def test_complete_swap_file_replaces_the_segments_it_covers(template, fast_path):
    trial = Trial(template, fast_path / "trial")
    first, second = trial.file("00000000000000000000.log"), trial.file(SYNCED_SEGMENT)
    swap = first.with_name(first.name + ".swap")
    swap.write_bytes(first.read_bytes() + second.read_bytes())

    check(trial, may_be_offline=False, lost_from=END)

    assert not swap.exists()
    assert not second.exists()


def test_torn_swap_file_leaves_the_originals(template, fast_path):
    trial = Trial(template, fast_path / "trial")
    first = trial.file("00000000000000000000.log")
    swap = first.with_name(first.name + ".swap")
    swap.write_bytes(first.read_bytes()[:-1])

    check(trial, may_be_offline=False, lost_from=END)

    assert not swap.exists()
