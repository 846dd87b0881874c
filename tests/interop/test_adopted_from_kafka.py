"""Data directories that Apache Kafka wrote are adopted, and served as Kafka served them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from interop import moving
from interop.moving import Seen
from support.brokers.kafka_servers import Kafka, Kafka27, Kafka39
from support.brokers.zookeeper import ZooKeeperServer
from support.drivers.confluent import Confluent
from support.drivers.java import java_missing
from support.drivers.kafka_python import KafkaPython

from kbroker.cli.adopt import main as adopt
from kbroker.testing import Broker, wait_until

OLD_CLIENTS = ((0, 8, 2), (0, 10, 2), (2, 0))
pytestmark = [
    pytest.mark.interop,
    pytest.mark.java,
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(java_missing()), reason=java_missing()),
]


def served(log_dirs: list[Path], broker_id: int, home: Path) -> Broker:
    return Broker(
        {
            "log.dirs": ",".join(map(str, log_dirs)),
            "broker.id": broker_id,
            "log.cleaner.enable": "false",
        },
        directory=home / "kbroker",
        start_timeout=60,
    )


def check_served(broker: Broker, seen: Seen) -> None:
    """The broker returns what Kafka returned, and producers continue there."""
    found = Seen(broker.bootstrap, with_ids=bool(seen.ids))
    assert found.records == seen.records
    assert found.offsets == seen.offsets
    assert found.ids == seen.ids
    ends = {place: partition.high for place, partition in found.records.items()}
    moving.send(broker.bootstrap, "codecs", [b"after"], enable_idempotence=True)
    # The new owner of the id ends what it had left open.
    moving.transaction(broker.bootstrap, moving.LEFT_OPEN, "transactions", "commit")
    after = moving.read_all(broker.bootstrap)
    assert after["codecs", 0].high == ends["codecs", 0] + 1
    # A marker for the open transaction, three records, a marker.
    assert after["transactions", 0].high == ends["transactions", 0] + 5
    committed = after["transactions", 0].committed
    assert len(committed) == len(seen.records["transactions", 0].committed) + 3
    commits = {("codecs", 0): 60}
    moving.commit_offsets(broker.bootstrap, {**seen.offsets, **commits})


def check_old_formats(broker: Broker, seen: Seen) -> None:
    """Clients of the time of these formats, and searches by time."""
    for place in sorted(place for place in seen.records if place[0] in moving.OLD):
        topic, number = place
        rows = seen.records[place].all_records
        for version in OLD_CLIENTS:
            found = KafkaPython(broker.bootstrap, version).fetch(topic, len(rows), partition=number)
            assert [row.offset for row in found] == [row[0] for row in rows], (place, version)
            assert [moving.digest(row.value) for row in found] == [row[3] for row in rows]
        timestamp = rows[30][1][1]
        if topic == "format-1":
            first = next(row[0] for row in rows if row[1][1] >= timestamp)
            assert Confluent(broker.bootstrap).offset(topic, timestamp, number) == first


def adopted(log_dirs: list[Path], *arguments: str) -> int:
    return adopt(["--log-dirs", ",".join(map(str, log_dirs)), *arguments])


def move_in(kafka: Kafka, home: Path, seen: Seen, capsys: Any) -> None:
    """Adopt Kafka's directories, and serve them."""
    broker_id = int(kafka.config.get("node.id", kafka.config.get("broker.id", "")))
    before = moving.every_file(kafka.log_dirs)
    assert adopted(kafka.log_dirs, "--dry-run") == 0
    assert moving.every_file(kafka.log_dirs) == before
    assert "Nothing was changed" in capsys.readouterr().out
    assert adopted(kafka.log_dirs) == 0
    after = moving.every_file(kafka.log_dirs)
    assert set(after) - set(before) == {f"{kafka.log_dirs[0].name}/kbroker-metadata.db"}
    assert {name: after[name] for name in before} == before
    capsys.readouterr()
    assert adopted(kafka.log_dirs) == 0
    assert "Nothing to do" in capsys.readouterr().out
    logs = moving.log_bytes(kafka.log_dirs)
    with served(kafka.log_dirs, broker_id, home) as broker:
        assert moving.log_bytes(kafka.log_dirs) == logs
        check_old_formats(broker, seen)
        check_served(broker, seen)


@pytest.mark.slow
def test_directories_of_kraft_are_adopted_and_served(tmp_path: Path, capsys: Any) -> None:
    with Kafka39(tmp_path / "kafka", [tmp_path / "a", tmp_path / "b"]) as kafka:
        moving.fill(kafka.bootstrap, broker_id=1, old_formats=False)
        moving.await_compaction(kafka.bootstrap)
        seen = Seen(kafka.bootstrap)
        assert adopted(kafka.log_dirs) == 1
        assert "a broker is using" in capsys.readouterr().err
    move_in(kafka, tmp_path, seen, capsys)
    with served(kafka.log_dirs, 1, tmp_path) as broker:
        settings = moving.topic_settings(broker.bootstrap, seen.settings)
        assert settings == seen.settings
        assert moving.broker_settings(broker.bootstrap, 1) == {"log.cleaner.backoff.ms": "14321"}


@pytest.mark.slow
@pytest.mark.parametrize("stop", ["stop", "kill"])
def test_directories_of_zookeeper_mode_are_adopted_and_served(
    tmp_path: Path, capsys: Any, stop: str
) -> None:
    with ZooKeeperServer(tmp_path / "zookeeper") as zookeeper:
        with Kafka27(
            tmp_path / "kafka", zookeeper.connect, [tmp_path / "a", tmp_path / "b"]
        ) as kafka:
            moving.fill(kafka.bootstrap, broker_id=0, old_formats=True, rounds=2)
            moving.await_compaction(kafka.bootstrap)
            seen = Seen(kafka.bootstrap, with_ids=False)
            if stop == "kill":
                # Kafka begins with its checkpoints half a minute after its start.
                wait_until(lambda: moving.log_start(kafka.log_dirs, "cut") == 25, 60)
            getattr(kafka, stop)()
        if stop == "stop":
            check_settings_of_zookeeper(kafka, zookeeper.connect, tmp_path / "copy", seen)
    move_in(kafka, tmp_path, seen, capsys)


def check_settings_of_zookeeper(kafka: Kafka, zookeeper: str, home: Path, seen: Seen) -> None:
    """If its ZooKeeper is named, the topics keep their configs."""
    pytest.importorskip("kazoo")
    copies = [home / log_dir.name for log_dir in kafka.log_dirs]
    for log_dir, copy in zip(kafka.log_dirs, copies, strict=True):
        shutil.copytree(log_dir, copy)
    assert adopted(copies, "--zookeeper", zookeeper) == 0
    with served(copies, 0, home) as broker:
        assert moving.topic_settings(broker.bootstrap, seen.settings) == seen.settings
        assert moving.broker_settings(broker.bootstrap, 0) == {"log.cleaner.backoff.ms": "14321"}
        assert moving.read_all(broker.bootstrap).keys() == seen.records.keys()
