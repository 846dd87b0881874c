"""What a starting broker does with logs that are assigned to others: rename what it is sure of."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import pytest

from kbroker.ipc.pending import run
from kbroker.metastore import paths
from kbroker.metastore.settled import SettledStore
from kbroker.metastore.simulated import Faults, SimulatedEnsemble
from kbroker.metastore.store import StoreOperation
from kbroker.storage.checkpoint import OffsetCheckpoint
from kbroker.storage.dirs.creation_note import creation_of, write_creation
from kbroker.storage.formats import SUSPECT_PARTITIONS
from kbroker.workers.controller import strays
from kbroker.workers.controller.strays import set_strays_aside

pytestmark = pytest.mark.unit

STRAY = re.compile(r"(.+)\.[0-9a-f]{32}-stray")


class Start:
    """Broker 1 with two log directories, which has registered and hosts nothing yet."""

    def __init__(self, tmp_path: Path) -> None:
        self.ensemble = SimulatedEnsemble(1, Faults(delay_max_ms=5))
        self.session_id = self.ensemble.begin_session()
        for path in paths.PERSISTENT_PATHS:
            self.apply("create", path)
        self.dirs = [tmp_path / "a", tmp_path / "b"]
        for directory in self.dirs:
            directory.mkdir()
        self.certain = [True, True]
        self.hosted: set[tuple[str, int]] = set()

    def apply(self, kind: Any, path: str, data: bytes = b"") -> None:
        self.ensemble.apply([StoreOperation(kind, path, data)], self.session_id)

    def topic(self, name: str, *replicas: list[int], **rest: dict[str, list[int]]) -> None:
        document = paths.encode_topic(None, dict(enumerate(replicas)), rest)
        self.apply("create", paths.topic(name), document)

    def log(self, name: str, at: int = 0, file: str = f"{0:020}.log") -> Path:
        directory = self.dirs[at] / name
        directory.mkdir()
        (directory / file).write_bytes(b"records")
        return directory

    def look(self) -> list[str]:
        """The names in the log directories afterwards; those of strays without the hex digits."""
        certain = iter(self.certain)
        store = SettledStore(self.ensemble.connect())
        done = run(
            set_strays_aside(
                store, 1, list(map(str, self.dirs)), lambda: next(certain), self.hosted.__contains__
            )
        )
        self.ensemble.run_until(lambda: done.done)
        assert done.error is None
        names = [path.name for directory in self.dirs for path in directory.glob("*")]
        return sorted(STRAY.sub(r"\1-stray", name) for name in names)


@pytest.fixture
def start(tmp_path: Path) -> Start:
    return Start(tmp_path)


def test_deleted_and_reassigned_partitions_are_renamed_and_named(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    start.topic("t", [1, 2], [2, 3], [0, 1])
    for name in ("t-0", "t-1", "t-2", "t-3", "__consumer_offsets-7"):
        start.log(name)
    start.log("gone.topic-0", at=1)

    assert start.look() == [
        "__consumer_offsets-7-stray", "gone.topic-0-stray", "t-0", "t-1-stray", "t-2", "t-3-stray"
    ]  # fmt: skip
    (stray,) = start.dirs[1].iterdir()
    assert (stray / f"{0:020}.log").read_bytes() == b"records"
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage().startswith("4 replicas on disk are not assigned")
    assert str(stray) in record.getMessage()


def test_partition_that_is_being_reassigned_stays(start: Start) -> None:
    start.topic(
        "t", [2], [2], [2], adding_replicas={"0": [1]}, removing_replicas={"1": [3, 1], "2": [3]}
    )
    for number in range(3):
        start.log(f"t-{number}")

    assert start.look() == ["t-0", "t-1", "t-2-stray"]


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"[]",
        b"{}",
        b'{"version": 2, "partitions": {"0": [2]',
        b'{"version": 2, "partitions": {"0": null}}',
        b'{"version": 2, "partitions": {"0": []}}',
        b'{"version": 2, "partitions": {"1": [2]}}',
        b'{"version": 2, "partitions": {"0": [[]]}}',
        b'{"version": 2, "partitions": {"0": [2]}, "adding_replicas": [1]}',
    ],
)
def test_damaged_topic_keeps_its_logs(
    start: Start, document: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    start.apply("create", paths.topic("t"), document)
    start.log("t-0")
    start.log("other-0")

    assert start.look() == ["other-0-stray", "t-0"]
    assert "topic t" in caplog.text


@pytest.mark.parametrize("certain", [[False], [True, False]])
def test_nothing_is_renamed_by_a_broker_that_is_not_certain(
    start: Start, certain: list[bool], caplog: pytest.LogCaptureFixture
) -> None:
    """A directory is offline, or goes offline during the reads."""
    start.certain = certain
    start.log("t-0")

    assert start.look() == ["t-0"]
    assert "not looking" in caplog.text


def test_store_without_topics_node_says_nothing(start: Start) -> None:
    start.apply("delete", paths.BROKER_TOPICS)
    start.log("t-0")

    assert start.look() == ["t-0"]


def test_directory_that_cannot_be_read_makes_everything_uncertain(start: Start) -> None:
    start.log("t-0")
    start.dirs[1].rmdir()

    assert start.look() == ["t-0"]


def test_lost_connection_is_no_missing_topic(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    start.ensemble.faults = Faults(delay_max_ms=50, loss_per_request=0.3, outage_max_ms=500)
    for number in range(20):
        start.topic(f"t{number}", [1])
        start.log(f"t{number}-0")

    assert not any(name.endswith("-stray") for name in start.look())
    assert not caplog.records


def test_hosted_partition_is_not_touched(start: Start) -> None:
    start.hosted.add(("t", 0))
    start.log("t-0")
    start.log("t-1")

    assert start.look() == ["t-0", "t-1-stray"]


def test_only_logs_of_topics_count(start: Start) -> None:
    """Not a directory of the user that happens to end in a number, nor Kafka's metadata log."""
    start.log("backup-2024", file="photo.jpg")
    start.log("__cluster_metadata-0")
    start.log("no topic-0")
    (start.dirs[0] / "file-0").write_bytes(b"")

    assert start.look() == ["__cluster_metadata-0", "backup-2024", "file-0", "no topic-0"]


def test_future_replica_of_a_stray_does_not_come_back(start: Start) -> None:
    start.topic("t", [1], [2])
    start.log("t-1")
    for number in range(2):
        start.log(f"t-{number}.{'0' * 32}-future", at=1)

    assert start.look() == [f"t-0.{'0' * 32}-future", "t-1-stray", "t-1-stray"]


def test_unfinished_move_of_a_replica_that_is_gone_is_set_aside(start: Start) -> None:
    """The directory with the replica was offline when the partition was reassigned."""
    start.topic("t", [1], [2])
    for number in range(2):
        start.log(f"t-{number}.{'0' * 32}-future")

    assert start.look() == [f"t-0.{'0' * 32}-future", "t-1-stray"]


def test_stray_is_not_suspect_any_more(start: Start) -> None:
    start.topic("t", [1])
    start.log("t-0")
    start.log("u-0")
    suspects = OffsetCheckpoint(str(start.dirs[0]), SUSPECT_PARTITIONS)
    suspects.merge({("t", 0): 0, ("u", 0): 0})

    start.look()

    assert set(suspects.read() or ()) == {("t", 0)}


def test_warning_names_ten_and_the_number_of_the_others(
    start: Start, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strays, "READS_AT_ONCE", 3)
    for number in range(25):
        start.log(f"t{number}-0")

    assert all(name.endswith("-stray") for name in start.look())
    (record,) = caplog.records
    assert record.getMessage().count("-stray") == 10
    assert "and 15 more" in record.getMessage()


def test_log_of_an_earlier_topic_of_the_name_is_renamed(start: Start) -> None:
    """The topic was deleted and created again while the broker was away, and is assigned to it."""
    start.apply("create", paths.CLUSTER_ID)
    start.topic("t", [1], [1], [1])
    start.topic("u", [1])
    store = start.ensemble.tree.exists(paths.CLUSTER_ID)
    topic = start.ensemble.tree.exists(paths.topic("t"))
    assert store is not None and topic is not None
    present = creation_of(store.created_id, topic.created_id)
    before = creation_of(store.created_id, topic.created_id - 1)
    elsewhere = creation_of(store.created_id + 1, topic.created_id - 1)
    for name, creation in (("t-0", present), ("t-1", before), ("t-2", elsewhere), ("u-0", b"")):
        path = start.log(name)
        if creation:
            write_creation(str(path), creation)

    assert start.look() == ["t-0", "t-1-stray", "t-2", "u-0"]
