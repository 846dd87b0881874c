"""A log directory: which partitions are in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker.storage.dirs.log_dir import LocalLogDir
from kbroker.storage.dirs.ownership import DirOwner
from kbroker.storage.dirs.partition_metadata import write_partition_metadata

pytestmark = pytest.mark.unit

KEY = ("t", 0)
ID, OTHER = bytes(15) + b"\1", bytes(15) + b"\2"


def test_directory_of_brokers_without_topic_ids_is_made_without_one(tmp_path: Path) -> None:
    """A later Kafka 2.8 would assign the partition to another topic."""
    log_dir = LocalLogDir(0, str(tmp_path), keeps_topic_ids=False)

    log_dir.create(KEY, DirOwner(ID))

    assert list((tmp_path / "t-0").iterdir()) == []


@pytest.mark.parametrize("is_new", [False, True])
def test_topic_id_of_an_earlier_time_is_removed_and_the_log_stays(
    tmp_path: Path, is_new: bool
) -> None:
    (tmp_path / "t-0").mkdir()
    write_partition_metadata(str(tmp_path / "t-0"), OTHER)
    log_dir = LocalLogDir(0, str(tmp_path), keeps_topic_ids=False)

    assert not log_dir.ownership.is_anothers(str(tmp_path / "t-0"), DirOwner(ID))
    assert log_dir.belongs(KEY, DirOwner(ID), is_new=is_new)

    assert list((tmp_path / "t-0").iterdir()) == []


def test_topic_id_is_kept_where_topics_have_one(tmp_path: Path) -> None:
    log_dir = LocalLogDir(0, str(tmp_path))
    log_dir.create(KEY, DirOwner(ID))

    assert not log_dir.ownership.is_anothers(str(tmp_path / "t-0"), DirOwner(ID))
    assert log_dir.ownership.is_anothers(str(tmp_path / "t-0"), DirOwner(OTHER))
    assert not log_dir.belongs(KEY, DirOwner(OTHER), is_new=True)
