"""Data directories of kbroker go back to Apache Kafka, which serves them as kbroker did."""

from __future__ import annotations

import re
import tarfile
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer
from interop import moving
from interop.moving import Seen
from support.brokers.kafka_servers import INTERNAL, Kafka, Kafka27, Kafka39
from support.brokers.zookeeper import ZooKeeperServer
from support.drivers.java import java_missing

from kbroker.cli.adopt import main as adopt
from kbroker.testing import Broker, wait_until

pytestmark = [
    pytest.mark.interop,
    pytest.mark.java,
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(java_missing()), reason=java_missing()),
]

COMPLAINTS = ("mismatch", "corrupt", "exception", "not found", "out of order")
FILE_KINDS = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")
# What Kafka says of files it does not trust.
DISTRUST = re.compile(r"(?i)corrupt|recover|rebuild|truncat|invalid|error|exception")
INTERNAL_TOPICS = ("__consumer_offsets", "__transaction_state")


def kbroker(log_dirs: list[Path], home: Path) -> Broker:
    settings = {**INTERNAL, "log.dirs": ",".join(map(str, log_dirs)), "broker.id": "1"}
    settings["shutdown.timeout.ms"] = "60000"  # the way back is after a clean shutdown only
    return Broker(settings, directory=home / "kbroker", start_timeout=60)


def filled(log_dirs: list[Path], home: Path, *, rounds: int, with_ids: bool = True) -> Seen:
    """Directories after a clean shutdown of kbroker."""
    with kbroker(log_dirs, home) as broker:
        moving.fill(broker.bootstrap, broker_id=1, old_formats=False, rounds=rounds)
        join_new_group(broker.bootstrap)
        moving.await_compaction(broker.bootstrap)
        return Seen(broker.bootstrap, with_ids)


def join_new_group(bootstrap: str) -> None:
    """A group of the new protocol, whose records Kafka 2.7 does not know."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "of-the-new-protocol",
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe(["codecs"])
    wait_until(lambda: consumer.poll(1) is not None, 20, "a record comes")
    consumer.commit(asynchronous=False)
    consumer.close()


def dump(kafka: Kafka, log_dirs: list[Path]) -> str:
    """The output of Kafka's own tool for every file."""
    files = [
        str(path)
        for log_dir in log_dirs
        for path in sorted(log_dir.glob("*/*"))
        if path.suffix in FILE_KINDS and path.stat().st_size
    ]
    assert {Path(file).suffix for file in files} == set(FILE_KINDS)
    return kafka.run("kafka.tools.DumpLogSegments", "--deep-iteration", "--files", ",".join(files))


def check_dump(kafka: Kafka, log_dirs: list[Path]) -> None:
    text = dump(kafka, log_dirs)
    assert "isvalid: true" in text
    assert "isvalid: false" not in text
    assert not [word for word in COMPLAINTS if word in text.lower()]


def check_served(kafka: Kafka, seen: Seen, rewritten: tuple[str, ...] = ()) -> None:
    """Kafka returns what kbroker returned, and producers continue there."""
    moving.await_topics(kafka.bootstrap, seen.settings)
    found = Seen(kafka.bootstrap, with_ids=bool(seen.ids))
    assert found.records.keys() == seen.records.keys()
    for place, expected in seen.records.items():
        if place[0] in rewritten:
            assert found.records[place].committed == expected.committed, place
        else:
            assert found.records[place] == expected, place
    assert (found.offsets, found.ids) == (seen.offsets, seen.ids)
    assert found.settings == seen.settings
    assert moving.broker_settings(kafka.bootstrap, 1) == {"log.cleaner.backoff.ms": "14321"}
    moving.send(kafka.bootstrap, "codecs", [b"after"], enable_idempotence=True)
    moving.transaction(kafka.bootstrap, moving.LEFT_OPEN, "transactions", "commit")
    committed = moving.read_all(kafka.bootstrap)["transactions", 0].committed
    assert len(committed) == len(seen.records["transactions", 0].committed) + 3
    moving.commit_offsets(kafka.bootstrap, seen.offsets)


def check_log(kafka: Kafka) -> None:
    """Kafka had nothing to repair."""
    text = kafka.log_path.read_text()
    # Scripted clients that go away, and the quorum's first election.
    lines = [line for line in text.splitlines() if "kafka.log" in line or "LogManager" in line]
    assert not [line for line in lines if DISTRUST.search(line)], text


def give_back(log_dirs: list[Path], *arguments: str) -> int:
    return adopt(["--log-dirs", ",".join(map(str, log_dirs)), "--back-to", *arguments])


@pytest.mark.slow
def test_kraft_takes_over_what_kbroker_wrote(tmp_path: Path, capsys: Any) -> None:
    log_dirs = [tmp_path / "a", tmp_path / "b"]
    seen = filled(log_dirs, tmp_path, rounds=1)
    kafka = Kafka39(tmp_path / "kafka", log_dirs, node_id="1")
    check_dump(kafka, log_dirs)
    before = moving.every_file(log_dirs)
    assert give_back(log_dirs, "kafka-3.9", "--dry-run") == 0
    assert moving.every_file(log_dirs) == before
    assert "Nothing was changed" in capsys.readouterr().out
    logs = moving.log_bytes(log_dirs)
    assert give_back(log_dirs, "kafka-3.9") == 0
    assert moving.log_bytes(log_dirs) == logs
    with kafka:
        check_served(kafka, seen)
    check_log(kafka)


@pytest.mark.slow
def test_zookeeper_mode_takes_over_what_kbroker_wrote(tmp_path: Path) -> None:
    pytest.importorskip("kazoo")
    log_dirs = [tmp_path / "a", tmp_path / "b"]
    seen = filled(log_dirs, tmp_path, rounds=3, with_ids=False)
    with ZooKeeperServer(tmp_path / "zookeeper") as zookeeper:
        kafka = Kafka27(tmp_path / "kafka", zookeeper.connect, log_dirs, broker_id="1")
        check_dump(kafka, log_dirs)
        assert give_back(log_dirs, "kafka-2.7", "--zookeeper", zookeeper.connect) == 0
        check_dump(kafka, log_dirs)
        with kafka:
            check_served(kafka, seen, INTERNAL_TOPICS)
            check_group_is_known(kafka.bootstrap)
        check_log(kafka)


def check_group_is_known(bootstrap: str) -> None:
    """The new protocol's group is gone, its offsets are there: the partition was loaded."""
    assert moving.committed_offsets(bootstrap, "of-the-new-protocol")


@pytest.mark.slow
def test_there_and_back_and_there_again(tmp_path: Path) -> None:
    """Kafka, kbroker, Kafka, kbroker: each sees what the previous one did."""
    log_dirs = [tmp_path / "a", tmp_path / "b"]
    directories = ",".join(map(str, log_dirs))
    kafka = Kafka39(tmp_path / "kafka", log_dirs)
    with kafka:
        moving.fill(kafka.bootstrap, broker_id=1, old_formats=False)
    assert adopt(["--log-dirs", directories]) == 0
    with kbroker(log_dirs, tmp_path) as broker:
        moving.create(broker.bootstrap, {"by-kbroker": (2, {"segment.bytes": "30000"})})
        moving.send(broker.bootstrap, "by-kbroker", [b"one", b"two"])
        seen = Seen(broker.bootstrap)
    assert give_back(log_dirs, "kafka-3.9") == 0
    (archive,) = list(tmp_path.glob("*/__cluster_metadata-0.before-kbroker.tar"))
    with tarfile.open(archive) as tar:
        assert f"__cluster_metadata-0/{0:020}.log" in tar.getnames()
    with kafka:
        check_served(kafka, seen)
        moving.create(kafka.bootstrap, {"by-kafka": (1, {})})
        moving.send(kafka.bootstrap, "by-kafka", [b"three"])
        seen = Seen(kafka.bootstrap)
    assert adopt(["--log-dirs", directories]) == 0
    with kbroker(log_dirs, tmp_path) as broker:
        found = Seen(broker.bootstrap)
    assert (found.records, found.ids, found.settings) == (seen.records, seen.ids, seen.settings)
