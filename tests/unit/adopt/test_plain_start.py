"""A start on directories that ``kbroker-adopt`` has not seen: refusals that leave no trace."""

import errno
import shutil
from pathlib import Path

import pytest
from support.storage.kraft_dirs import (
    CLUSTER_ID,
    ORDERS,
    TOPIC_ID,
    all_files,
    drop_records,
    kraft_dir,
    write_log,
    write_meta,
    write_metadata,
    zookeeper_dir,
)

from kbroker.adopt import at_start
from kbroker.adopt import metadata_records as records
from kbroker.adopt.at_start import look_at_topics
from kbroker.adopt.register import store_to_read
from kbroker.cli.adopt import EXIT_OK, EXIT_REFUSED, main
from kbroker.config.loader import BrokerConfig
from kbroker.errors import ConfigError
from kbroker.metastore import paths
from kbroker.metastore.node_file import NodeFile
from kbroker.record.builder import BatchBuilder
from kbroker.supervisor.data_dirs import DataDirs

pytestmark = pytest.mark.unit


def start(*directories):
    return DataDirs.open(BrokerConfig({"log.dirs": ",".join(map(str, directories))}))


def cut_short(directory):
    log = directory / "orders-0" / f"{0:020}.log"
    log.write_bytes(log.read_bytes()[:-1])


def cut_short_without_checkpoint(directory):
    (directory / "recovery-point-offset-checkpoint").unlink()
    cut_short(directory)


def segment_lost(directory):
    log = directory / "orders-0" / f"{0:020}.log"
    data = log.read_bytes()
    (directory / "orders-0" / f"{4:020}.log").write_bytes(data[4 * len(data) // 5 :])
    log.write_bytes(data[: 2 * len(data) // 5])


def log_lost(directory):
    (directory / "orders-0" / f"{0:020}.log").unlink()


def all_logs_lost(directory):
    shutil.rmtree(directory / "orders-0")


def partition_lost(directory):
    """As if one of several data directories had been left out."""
    write_log(directory, "orders-2", None)


def identity_lost(directory):
    (directory / "meta.properties").unlink()


def identity_incomplete(directory):
    (directory / "meta.properties").write_text("version=0\nbroker.id=1\n")


def version_unknown(directory):
    write_meta(directory, 2)


def metadata_elsewhere(directory):
    """KRaft with a metadata.log.dir of its own, which has the topics' settings."""
    write_meta(directory)


def checkpoint_damaged(directory):
    (directory / "recovery-point-offset-checkpoint").write_text("0\n9\n")


def cleaner_checkpoint_damaged(directory):
    """A compacted log would be truncated at its first gap."""
    (directory / "cleaner-offset-checkpoint").write_text("0\n9\n")


def compacted_and_half_copied(directory):
    """Without checkpoints and the clean shutdown marker, the whole log is recovered."""
    (directory / "recovery-point-offset-checkpoint").unlink()
    (directory / ".kafka_cleanshutdown").unlink()
    drop_records(directory, 2, 4)


def older_topic_of_the_same_name(directory):
    for number, topic_id in ((1, TOPIC_ID), (2, bytes(16))):
        write_log(directory, f"orders-{number}", topic_id)


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (cut_short, "ends at offset 4, but was synced up to 5"),
        (cut_short_without_checkpoint, "although the broker was stopped cleanly"),
        (segment_lost, "ends at offset 2, but the next file begins at 4"),
        (log_lost, "no .log file is left"),
        (all_logs_lost, "orders-0: missing, although"),
        (partition_lost, "orders-1: missing"),
        (identity_lost, "meta.properties is missing"),
        (identity_incomplete, "does not contain a broker.id and a cluster.id"),
        (version_unknown, "unknown version '2'"),
        (metadata_elsewhere, "--metadata-log-dir. If it is lost, --without-metadata takes"),
        (checkpoint_damaged, "9 entries expected"),
        (cleaner_checkpoint_damaged, "9 entries expected"),
        (compacted_and_half_copied, "offset 4 where 2 was expected"),
        (older_topic_of_the_same_name, "topic id"),
    ],
)
def test_what_kbroker_adopt_refuses_is_not_served_either(tmp_path, capsys, damage, told):
    """If it were served, records that exist elsewhere would be missing, or offsets assigned
    twice.
    """
    directory = zookeeper_dir(tmp_path)
    damage(directory)
    before = all_files(directory)

    with pytest.raises(ConfigError) as refusal:
        start(directory)

    assert told in str(refusal.value)
    assert f"kbroker-adopt --log-dirs {directory} --dry-run" in str(refusal.value)
    assert all_files(directory) == before
    assert main(["--log-dirs", str(directory)]) == EXIT_REFUSED
    assert told in capsys.readouterr().err


def test_partition_in_two_directories_is_refused(tmp_path):
    first = zookeeper_dir(tmp_path / "a")
    second = zookeeper_dir(tmp_path / "b")

    with pytest.raises(ConfigError, match=r"b/orders-0: .*/a also has this partition"):
        start(first, second)


def test_directories_of_kraft_and_zookeeper_mode_are_refused(tmp_path):
    first = zookeeper_dir(tmp_path / "a")
    write_meta(tmp_path / "b")
    write_log(tmp_path / "b", "payments-0", TOPIC_ID)

    with pytest.raises(ConfigError, match="belong to different brokers"):
        start(first, tmp_path / "b")


def test_directory_that_was_stopped_in_order_is_taken(tmp_path):
    """Including a new directory and files of other programs."""
    directory = zookeeper_dir(tmp_path / "data")
    (directory / "photos").mkdir()
    (directory / "backup-2024").mkdir()
    (tmp_path / "new").mkdir()

    dirs = start(directory, tmp_path / "new")
    dirs.release()

    assert (dirs.broker_id, dirs.cluster_id) == (1, CLUSTER_ID)


def test_metadata_of_kbroker_is_not_asked_twice(tmp_path):
    """A directory that the broker itself keeps offline must not stop it from serving the rest."""
    directory = zookeeper_dir(tmp_path)
    cut_short(directory)
    NodeFile(str(directory)).close()

    dirs = start(directory)
    dirs.release()

    assert (dirs.broker_id, dirs.cluster_id) == (1, CLUSTER_ID)


def test_adopted_directory_of_kraft_starts(tmp_path):
    directory = kraft_dir(tmp_path)
    assert main(["--log-dirs", str(directory)]) == 0

    start(directory).release()


def test_start_after_kafka_continued_is_refused(tmp_path):
    """Topics that Kafka has deleted would come back empty, and new ones would become stray."""
    directory = kraft_dir(tmp_path)
    assert main(["--log-dirs", str(directory)]) == 0
    shutil.rmtree(directory / "__cluster_metadata-0")
    write_metadata(directory, [*ORDERS, records.TopicRecord(name="new", topic_id=bytes(16))])
    before = all_files(directory)

    with pytest.raises(ConfigError, match="Kafka has run on this directory since"):
        start(directory)

    assert {name: data for name, data in all_files(directory).items() if name in before} == before


def test_start_after_kafka_continued_is_possible_without_its_metadata(tmp_path):
    directory = kraft_dir(tmp_path / "data")
    assert main(["--log-dirs", str(directory)]) == 0
    (directory / "__cluster_metadata-0").rename(tmp_path / "away")

    start(directory).release()


def test_start_that_cannot_ask_whether_kafka_continued_continues(tmp_path, monkeypatch, caplog):
    """A full disk must not prevent a start, and the check copies the store."""
    directory = kraft_dir(tmp_path)
    assert main(["--log-dirs", str(directory)]) == 0

    def full(_place):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(at_start, "store_to_read", full)

    start(directory).release()

    assert "cannot tell whether Kafka has run here" in caplog.text


def test_directory_of_kraft_that_lost_all_metadata_is_taken_when_told_so(tmp_path, capsys):
    """Kafka's was removed years ago, kbroker's was lost with a disk: the records are still
    there.
    """
    directory = kraft_dir(tmp_path)
    shutil.rmtree(directory / "__cluster_metadata-0")
    before = all_files(directory)
    with pytest.raises(ConfigError, match="--without-metadata"):
        start(directory)

    for text in (
        "are unknown. So that nothing is deleted",
        "Nothing to do: 1 topic registered in ",
    ):
        assert main(["--log-dirs", str(directory), "--without-metadata"]) == EXIT_OK
        told = capsys.readouterr().out
        assert text in told
        assert "ZooKeeper" not in told

    assert {name: all_files(directory)[name] for name in before} == before
    with store_to_read(str(directory)) as store:
        assert paths.decode_topic(store.get(paths.topic("orders")).data)[0] == TOPIC_ID
        config = paths.decode_config(store.get(paths.topic_config("orders")).data)
    assert config == {"retention.ms": "-1", "retention.bytes": "-1"}
    start(directory).release()


def test_metadata_that_is_there_is_not_passed_over(tmp_path, capsys):
    directory = kraft_dir(tmp_path)

    assert main(["--log-dirs", str(directory), "--without-metadata"]) == EXIT_REFUSED
    assert "__cluster_metadata-0 exists" in capsys.readouterr().err


def test_producer_ids_are_found_in_logs_without_snapshots(tmp_path):
    """The first records of a reused id are dropped as duplicates."""
    directory = zookeeper_dir(tmp_path)
    for snapshot in (directory / "orders-0").glob("*.snapshot"):
        snapshot.unlink()
    builder = BatchBuilder(base_offset=5, producer_id=7_000_000, producer_epoch=0, base_sequence=0)
    builder.append(b"value", b"key", 1005)
    with Path(directory / "orders-0" / f"{0:020}.log").open("ab") as log:
        log.write(builder.build())

    plan = look_at_topics([str(directory)])

    assert plan is not None
    assert plan.next_producer_id > 7_000_000


def test_compacted_log_that_is_known_as_such_is_taken(tmp_path):
    directory = zookeeper_dir(tmp_path)
    compacted_and_half_copied(directory)
    (directory / "cleaner-offset-checkpoint").write_text("0\n1\norders 0 4\n")

    start(directory).release()
