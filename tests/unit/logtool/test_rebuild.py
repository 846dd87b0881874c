"""``kbroker-log rebuild`` creates the indexes that a broker would have, or leaves the existing
ones.
"""

import fcntl
import os
import shutil

import pytest
from support.brokers.owners import as_root, hand_over, not_handed_over
from support.storage.log_files import SETTINGS, damaged_files, flip, make_partition, run

from kbroker.logtool import rebuild as rebuild_module

pytestmark = pytest.mark.unit

INDEXES = (".index", ".timeindex", ".txnindex")
INTERVAL = ("--index-interval-bytes", str(SETTINGS["index.interval.bytes"]))


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    return make_partition(tmp_path_factory.mktemp("sound"))


@pytest.fixture
def partition(sound, tmp_path):
    shutil.copytree(sound.parent, tmp_path / "logs")
    return tmp_path / "logs" / sound.name


def indexes(partition):
    return {path.name: path.read_bytes() for path in partition.iterdir() if path.suffix in INDEXES}


@pytest.mark.parametrize("target", ["log directory", "partition", "each file"])
def test_rebuild_damaged_and_missing_indexes_gives_those_of_the_broker(partition, target):
    wanted = indexes(partition)
    for number, path in enumerate(sorted(partition.glob("*.*index"))):
        if number % 3 == 0:
            path.unlink()
        elif path.stat().st_size:
            flip(path, path.stat().st_size - 3)
    assert damaged_files(partition)
    paths = {
        "log directory": [partition.parent],
        "partition": [partition],
        "each file": sorted(partition.glob("*.log")),
    }[target]

    code, text = run("rebuild", *INTERVAL, *paths)

    assert code == 0, text
    assert indexes(partition) == wanted
    assert not list(partition.glob("*.tmp"))
    assert damaged_files(partition) == set()


def test_rebuild_index_alone_stands_for_its_segment(partition):
    wanted = indexes(partition)
    path = sorted(partition.glob("*.timeindex"))[1]
    path.unlink()

    assert run("rebuild", *INTERVAL, path.with_suffix(".index"))[0] == 0

    assert indexes(partition) == wanted


def test_rebuild_damaged_log_keeps_its_indexes_and_does_the_others(partition):
    log = sorted(partition.glob("*.log"))[1]
    flip(log, 80)
    other = sorted(partition.glob("*.index"))[2]
    wanted = indexes(partition)
    other.write_bytes(b"")

    code, text = run("rebuild", *INTERVAL, partition)

    assert code == 1
    assert f"{log}: damage: the checksum does not match at position 0" in text
    assert {n: d for n, d in indexes(partition).items() if not n.endswith(".txnindex")} == {
        n: d for n, d in wanted.items() if not n.endswith(".txnindex")
    }
    assert indexes(partition)[log.with_suffix(".txnindex").name]
    assert not list(partition.glob("*.tmp"))


@pytest.mark.parametrize("one_file", [False, True])
def test_rebuild_while_a_broker_has_the_directory_is_refused(partition, capsys, one_file):
    wanted = indexes(partition)
    fd = os.open(partition.parent / ".lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(fd, fcntl.LOCK_EX)
    try:
        code, _ = run("rebuild", next(partition.glob("*.index")) if one_file else partition)
    finally:
        os.close(fd)

    assert code == 2
    assert "stop it first" in capsys.readouterr().err
    assert indexes(partition) == wanted
    assert run("rebuild", *INTERVAL, partition)[0] == 0


def test_verify_while_a_broker_has_the_directory_says_so(partition, capsys):
    fd = os.open(partition.parent / ".lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(fd, fcntl.LOCK_EX)
    try:
        code, _ = run("verify", partition)
    finally:
        os.close(fd)

    assert code == 0
    assert "a broker is using" in capsys.readouterr().err


@as_root
def test_rebuild_by_root_leaves_nothing_that_the_broker_may_not_open(partition):
    (partition.parent / "meta.properties").write_text("version=0\n")
    for path in partition.glob("*.txnindex"):
        flip(path, 0) if path.stat().st_size else path.unlink()
    hand_over(partition.parent)

    code, text = run("rebuild", *INTERVAL, partition)

    assert code == 0, text
    assert list(not_handed_over(partition.parent)) == []


def test_rebuild_without_room_on_the_disk_keeps_the_old_index(partition, monkeypatch):
    wanted = indexes(partition)

    def full(fd, offset, size):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(rebuild_module.os, "posix_fallocate", full)

    code, text = run("rebuild", *INTERVAL, partition)

    assert code == 1 and "No space left on device" in text
    assert indexes(partition) == wanted
    assert not list(partition.glob("*.tmp"))


@pytest.mark.parametrize("name", ["leader-epoch-checkpoint", "partition.metadata"])
def test_rebuild_of_what_has_no_log_is_wrong_usage(partition, name):
    assert run("rebuild", partition / name)[0] == 2


def test_rebuild_of_an_index_without_a_log_is_wrong_usage(partition):
    path = sorted(partition.glob("*.index"))[0]
    path.with_suffix(".log").unlink()

    assert run("rebuild", path)[0] == 2
    assert path.exists()
