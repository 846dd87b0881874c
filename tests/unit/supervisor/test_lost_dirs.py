"""Missing data directories: removed from log.dirs, or empty because a disk is not mounted."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from kbroker.config.loader import BrokerConfig
from kbroker.errors import ConfigError
from kbroker.metastore import paths
from kbroker.metastore.node_file import NodeFile
from kbroker.supervisor.data_dirs import DataDirs
from kbroker.uuids import new_uuid

pytestmark = pytest.mark.unit


def config(*directories: Path) -> BrokerConfig:
    return BrokerConfig({"log.dirs": ",".join(map(str, directories)), "broker.id": "7"})


def start(*directories: Path, missing_begin_empty: bool = False) -> DataDirs:
    dirs = DataDirs.open(config(*directories), missing_begin_empty)
    dirs.begin()
    dirs.release()
    return dirs


@pytest.fixture
def a(tmp_path: Path) -> Path:
    """Contains the metadata and partition 0 of topic t."""
    return tmp_path / "a"


@pytest.fixture
def b(a: Path, tmp_path: Path) -> Path:
    """Contains partition 1; both were in log.dirs at a start."""
    b = tmp_path / "b"
    start(a, b)
    store = NodeFile(str(a))
    transaction = store.multi()
    for path in paths.PERSISTENT_PATHS:
        transaction.create(path)
    transaction.create(paths.topic("t"), paths.encode_topic(new_uuid(), {0: [7], 1: [7]}))
    transaction.commit()
    store.close()
    (a / "t-0").mkdir()
    (b / "t-1").mkdir()
    return b


def empty(directory: Path) -> None:
    shutil.rmtree(directory)
    directory.mkdir()


def test_emptied_directory_is_left_out_until_it_is_back(
    a: Path, b: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = b.rename(tmp_path / "disk")
    b.mkdir()
    for _ in range(2):
        caplog.clear()
        dirs = start(a, b)
        assert dirs.lost == [str(b)]
        assert dirs.paths == [str(a)]
        assert "t-1" in caplog.text
        assert "--missing-begin-empty" in caplog.text
        assert not (b / "meta.properties").exists()

    shutil.rmtree(b)
    disk.rename(b)

    dirs = start(a, b)
    assert (dirs.lost, dirs.paths) == ([], [str(a), str(b)])


def test_partitions_of_an_emptied_directory_begin_empty_when_told_so(a: Path, b: Path) -> None:
    empty(b)

    assert start(a, b, missing_begin_empty=True).paths == [str(a), str(b)]
    assert start(a, b).lost == []


def test_emptied_directory_that_had_the_metadata_is_not_begun_again(a: Path, b: Path) -> None:
    empty(a)

    with pytest.raises(ConfigError, match=r"kbroker-metadata\.db.*no other directory does"):
        start(a, b)

    assert not (a / "meta.properties").exists()


@pytest.mark.parametrize("left", ["taken out", "moved"])
def test_directory_with_partitions_that_is_not_configured_any_more_is_refused(
    a: Path, b: Path, tmp_path: Path, left: str
) -> None:
    directories = [a] if left == "taken out" else [a, tmp_path / "new"]

    with pytest.raises(ConfigError, match=rf"{b} as well: .* 1 partition \(t-1\)"):
        start(*directories)

    assert start(*directories, missing_begin_empty=True).paths == [str(d) for d in directories]
    start(*directories)


def test_directory_that_is_called_otherwise_now_is_taken(a: Path, b: Path, tmp_path: Path) -> None:
    moved = b.rename(tmp_path / "moved")

    assert start(a, moved).paths == [str(a), str(moved)]
    assert start(a, moved).paths == [str(a), str(moved)]


def test_directories_that_are_all_called_otherwise_miss_none(
    a: Path, b: Path, tmp_path: Path
) -> None:
    """A partition without a folder after a power failure was in none of them."""
    (b / "t-1").rmdir()
    swapped = [a.rename(tmp_path / "swap"), b.rename(a), (tmp_path / "swap").rename(b)]

    assert start(*swapped[1:]).lost == []
    assert start(a.rename(tmp_path / "c"), b.rename(tmp_path / "d")).lost == []


def test_directory_that_was_emptied_by_moves_may_go(a: Path, b: Path) -> None:
    (b / "t-1").rename(a / "t-1")

    assert start(a).paths == [str(a)]
    (a / "t-1").rmdir()
    assert start(a).paths == [str(a)], "it is forgotten"


def test_empty_directory_of_which_no_start_knew_is_a_new_one(a: Path, b: Path, tmp_path: Path):
    (b / "t-1").rmdir()  # whatever took it away

    assert start(a, b, tmp_path / "new").lost == []


def test_single_directory_needs_no_note(tmp_path: Path) -> None:
    start(tmp_path)

    assert not (tmp_path / "kbroker-log-dirs.txt").exists()


def test_directory_is_not_forgotten_while_another_cannot_be_used(
    a: Path, b: Path, tmp_path: Path
) -> None:
    c = tmp_path / "c"
    c.write_text("in its place")

    assert start(a, c).paths == [str(a)]  # no log starts empty while c is offline
    c.unlink()
    with pytest.raises(ConfigError, match=f"{b} as well"):
        start(a, c)
