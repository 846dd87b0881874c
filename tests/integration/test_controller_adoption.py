"""A new metadata store with old data: the topics on disk are served again."""

import os
import shutil

import pytest
from support.controller.controller_harness import NETWORK, ControllerHarness, topic
from support.storage.kraft_dirs import drop_records, zookeeper_dir

from kbroker._ext.log.producer_state import ProducerState
from kbroker.adopt.at_start import look_at_topics
from kbroker.config.loader import BrokerConfig
from kbroker.errors import EXIT_CANNOT_START
from kbroker.ipc.process_table import CONTROLLER
from kbroker.metastore.paths import TOPIC_CONFIGS
from kbroker.metastore.store_files import COPY_NAME, FILE_NAME, WAL_NAME, read_copy
from kbroker.storage.dirs.partition_metadata import write_partition_metadata
from kbroker.storage.segments.producer_snapshots import write_snapshot
from kbroker.supervisor import launch
from kbroker.testing import Broker, wait_until

pytestmark = pytest.mark.integration

TOPIC_ID = bytes(range(16))


def make_partition(data_dir, name, topic_id=None, last_epoch=None):
    path = data_dir / name
    path.mkdir(parents=True)
    # As written by the supervisor before a controller starts.
    (data_dir / "meta.properties").write_text("version=0\nbroker.id=0\ncluster.id=test-cluster\n")
    (path / "00000000000000000000.log").touch()
    if topic_id is not None:
        write_partition_metadata(str(path), topic_id)
    if last_epoch is not None:
        (path / "leader-epoch-checkpoint").write_text(f"0\n1\n{last_epoch} 0\n")


@pytest.fixture
def harness(tmp_path):
    harness = ControllerHarness(tmp_path)
    yield harness
    harness.close()


def image(harness):
    return harness.join(NETWORK).image


def test_topics_on_disk_are_adopted_once(harness):
    data_dir = harness.data_dir
    make_partition(data_dir, "old-0")
    make_partition(data_dir, "old-1")
    make_partition(data_dir, "old-2", last_epoch=7)
    make_partition(data_dir, "with.id-0", TOPIC_ID)
    make_partition(data_dir, "gone-0.0123456789abcdef0123456789abcdef-delete")
    (data_dir / "backup-2024").mkdir()
    harness.start()
    topics = image(harness).topics
    assert sorted(topics) == ["old", "with.id"]
    assert [p.leader_epoch for p in topics["old"].partitions] == [0, 0, 8]
    assert topics["with.id"].topic_id == TOPIC_ID
    assert topics["old"].config == {"retention.ms": "-1", "retention.bytes": "-1"}
    harness.stop()
    harness.start_controller()
    harness.await_ready()
    assert image(harness).topics == topics


@pytest.mark.parametrize("lost", [(FILE_NAME,), (FILE_NAME, COPY_NAME)])
def test_lost_metadata_costs_no_topic(harness, lost):
    """The copy has the configs, too; the directories only show that there is a topic."""
    harness.start()
    (made,) = harness.call("create_topics", topics=[topic("t", retention_ms="77")])
    make_partition(harness.data_dir, "t-0", bytes.fromhex(made["topic_id"]))
    harness.stop()
    for name in lost:
        (harness.data_dir / name).unlink()
    harness.start_controller()
    harness.await_ready()
    found = image(harness).topics["t"]
    assert found.topic_id.hex() == made["topic_id"]
    assert found.config["retention.ms"] == ("-1" if COPY_NAME in lost else "77")


def copied_topics(data_dir):
    """The topics in the copy of the store, once the write-ahead log is empty."""
    copy = read_copy(str(data_dir))
    if copy is None or (data_dir / WAL_NAME).stat().st_size:
        return []
    return sorted(p.rpartition("/")[2] for p in copy.rows if p.startswith(TOPIC_CONFIGS + "/"))


@pytest.mark.parametrize("damage", ["flipped", "removed", "database removed"])
def test_lost_log_of_changes_costs_no_topic(harness, damage):
    """One damaged byte early in it drops everything after it."""
    harness.start()
    (before,) = harness.call("create_topics", topics=[topic("before", retention_ms="77")])
    make_partition(harness.data_dir, "before-0", bytes.fromhex(before["topic_id"]))
    first_ids = harness.call("allocate_producer_ids")["first"]
    wait_until(lambda: copied_topics(harness.data_dir) == ["before"])
    made = harness.call("create_topics", topics=[topic("t", 3), topic("u")])
    harness.call("create_partitions", topics=[{"name": "before", "count": 3, "assignments": []}])
    harness.call("allocate_producer_ids")
    harness.kill()
    for result, partitions in zip(made, (3, 1), strict=True):
        for number in range(partitions):
            make_partition(
                harness.data_dir, f"{result['name']}-{number}", bytes.fromhex(result["topic_id"])
            )
    make_partition(harness.data_dir, "before-2", bytes.fromhex(before["topic_id"]))
    wal = harness.data_dir / WAL_NAME
    assert wal.stat().st_size > 0
    if damage == "flipped":
        data = bytearray(wal.read_bytes())
        data[100] ^= 1
        wal.write_bytes(data)
    elif damage == "removed":
        wal.unlink()
    else:
        (harness.data_dir / FILE_NAME).unlink()
    harness.start_controller()
    harness.await_ready()
    topics = image(harness).topics
    assert {name: len(found.partitions) for name, found in topics.items()} == {
        "before": 3,
        "t": 3,
        "u": 1,
    }
    assert topics["before"].config == {"retention.ms": "77"}
    for result in made:
        assert topics[result["name"]].topic_id.hex() == result["topic_id"]
        assert topics[result["name"]].config["retention.ms"] == "-1"
    assert harness.call("allocate_producer_ids")["first"] > first_ids + 2000


def test_directory_of_a_topic_that_the_store_lacks_is_served(harness):
    harness.start()
    harness.stop()
    make_partition(harness.data_dir, "late-0", TOPIC_ID)
    harness.start_controller()
    harness.await_ready()
    topics = image(harness).topics
    assert topics["late"].topic_id == TOPIC_ID
    assert topics["late"].config == {"retention.ms": "-1", "retention.bytes": "-1"}


def test_topic_that_was_deleted_while_its_directory_was_away_stays_deleted(harness):
    harness.start()
    made = harness.call("create_topics", topics=[topic("t"), topic("u")])
    harness.context.failed_log_dirs[0] = 1
    harness.call("delete_topics", topics=[{"name": "t"}])
    harness.context.failed_log_dirs[0] = 0
    harness.call("delete_topics", topics=[{"name": "u"}])
    for result in made:
        make_partition(harness.data_dir, f"{result['name']}-0", bytes.fromhex(result["topic_id"]))
    harness.stop()
    for _ in range(2):
        harness.start_controller()
        harness.await_ready()
        assert list(image(harness).topics) == ["u"]
        harness.stop()
    # The note goes with the directory.
    shutil.rmtree(harness.data_dir / "t-0")
    harness.start_controller()
    harness.await_ready()
    harness.stop()
    make_partition(harness.data_dir, "t-0", bytes.fromhex(made[0]["topic_id"]))
    harness.start_controller()
    harness.await_ready()
    assert sorted(image(harness).topics) == ["t", "u"]


def test_internal_topic_found_on_disk_stays_compacted(harness):
    """Retention by time would delete the committed offsets of every group."""
    make_partition(harness.data_dir, "__consumer_offsets-0")
    make_partition(harness.data_dir, "table-0")
    (harness.data_dir / "cleaner-offset-checkpoint").write_text("0\n1\ntable 0 9\n")
    harness.start()
    topics = image(harness).topics
    assert topics["__consumer_offsets"].config["cleanup.policy"] == "compact"
    assert topics["table"].config["cleanup.policy"] == "compact"


def test_producer_ids_on_disk_are_not_given_again(harness):
    """A second owner of an id would have its first records dropped as duplicates."""
    harness.context.clean_start = {str(harness.data_dir): False}  # the log ends before its snapshot
    make_partition(harness.data_dir, "t-0")
    producers = ProducerState(7)
    producers.append_batch(4321, 0, 0, 6, 6, 0)
    write_snapshot(str(harness.data_dir / "t-0"), producers)
    harness.start()
    assert harness.call("allocate_producer_ids")["first"] > 4321


@pytest.mark.parametrize("reason", ["kraft", "released", "partition missing"])
def test_data_of_kafka_is_left_to_kbroker_adopt(harness, reason):
    """Its configs are in the directory, or it is incomplete: serving it needs a decision."""
    make_partition(harness.data_dir, "t-0")
    if reason == "kraft":
        make_partition(harness.data_dir, "__cluster_metadata-0")
    elif reason == "partition missing":
        make_partition(harness.data_dir, "t-2")
    else:
        (harness.data_dir / f"{FILE_NAME}.released").touch()
    harness.start_controller()
    pid, harness.pid = harness.pid, 0
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == EXIT_CANNOT_START
    assert not (harness.data_dir / FILE_NAME).exists()


def test_gaps_of_a_broker_that_was_stopped_in_order_are_served(tmp_path):
    """The supervisor has removed the clean shutdown marker by the time the controller looks."""
    directory = zookeeper_dir(tmp_path / "data")
    drop_records(directory, 2, 4)

    with Broker({"log.dirs": str(directory), "broker.id": 1}, directory=tmp_path / "run") as broker:
        assert "topic orders with 1 partition was found on disk" in broker.log_text


def test_second_controller_of_a_first_start_judges_as_the_first(tmp_path):
    directory = zookeeper_dir(tmp_path / "data")
    drop_records(directory, 2, 4)
    config = BrokerConfig({"log.dirs": str(directory), "listeners": "PLAINTEXT://127.0.0.1:0"})
    broker = launch.BrokerRun(config, None, {})
    try:
        contexts = [broker.context_for(CONTROLLER, incarnation) for incarnation in (1, 2)]
    finally:
        broker.close()

    for context in contexts:
        assert look_at_topics([str(directory)], context.clean_start) is not None
