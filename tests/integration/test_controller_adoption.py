"""A new metadata store beside old data: the topics on disk are served again."""

import pytest
from controller_harness import NETWORK, ControllerHarness, topic

from kbroker.metastore.embedded import FILE_NAME
from kbroker.storage.partition_metadata import write_partition_metadata

pytestmark = pytest.mark.integration

TOPIC_ID = bytes(range(16))


def make_partition(data_dir, name, topic_id=None, last_epoch=None):
    path = data_dir / name
    path.mkdir(parents=True)
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
    make_partition(data_dir, "old-2", last_epoch=7)
    make_partition(data_dir, "with.id-0", TOPIC_ID)
    make_partition(data_dir, "gone-0.0123456789abcdef0123456789abcdef-delete")
    make_partition(data_dir, "__cluster_metadata-0")
    (data_dir / "backup-2024").mkdir()
    harness.start()
    topics = image(harness).topics
    assert sorted(topics) == ["old", "with.id"]
    assert [p.leader_epoch for p in topics["old"].partitions] == [0, 0, 8]
    assert topics["with.id"].topic_id == TOPIC_ID
    make_partition(data_dir, "late-0")
    harness.stop()
    harness.start_controller()
    harness.await_ready()
    assert image(harness).topics == topics


def test_lost_metadata_costs_no_topic(harness):
    harness.start()
    (made,) = harness.call("create_topics", topics=[topic("t")])
    make_partition(harness.data_dir, "t-0", bytes.fromhex(made["topic_id"]))
    harness.stop()
    (harness.data_dir / FILE_NAME).unlink()
    harness.start_controller()
    harness.await_ready()
    assert image(harness).topics["t"].topic_id.hex() == made["topic_id"]
