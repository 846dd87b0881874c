"""``kbroker-adopt``: registrations, messages, and refusals that leave no trace."""

import fcntl
import os
import shutil

import pytest
from support.storage.kraft_dirs import (
    CLUSTER_ID,
    ORDERS,
    TOPIC_ID,
    all_files,
    kraft_dir,
    write_log,
    write_meta,
    write_metadata,
    zookeeper_dir,
)

from kbroker.adopt import metadata_records as records
from kbroker.adopt.register import read_features, store_to_read
from kbroker.cli.adopt import EXIT_REFUSED, EXIT_USAGE, main
from kbroker.metastore import paths
from kbroker.metastore.node_file import NodeFile
from kbroker.metastore.store_files import FILE_NAME

pytestmark = pytest.mark.unit


def adopt(*directories, **options):
    arguments = ["--log-dirs", ",".join(map(str, directories))]
    for name, value in options.items():
        arguments.append(f"--{name.replace('_', '-')}")
        if value is not True:
            arguments.append(str(value))
    return main(arguments)


def refused(capsys, *directories, **options):
    """Returns the message of the refusal; asserts that it left no trace."""
    before = [all_files(directory) for directory in directories if directory.is_dir()]
    assert adopt(*directories, **options) == EXIT_REFUSED
    assert [all_files(directory) for directory in directories if directory.is_dir()] == before
    text = capsys.readouterr().err
    assert "nothing was changed" in text
    return text


class Registered:
    """The content of the store in a directory."""

    def __init__(self, directory):
        with store_to_read(str(directory)) as store:
            self.cluster_id = paths.decode_cluster_id(store.get(paths.CLUSTER_ID).data)
            self.last_producer_id = paths.decode_producer_id_block(
                store.get(paths.PRODUCER_ID_BLOCK).data
            )
            self.features = read_features(store)
            self.topics = {
                name: paths.decode_topic(store.get(paths.topic(name)).data)
                for name in store.children(paths.BROKER_TOPICS)
            }
            self.configs = {
                name: paths.decode_config(store.get(paths.topic_config(name)).data)
                for name in self.topics
            }
            self.states = {
                name: paths.decode_partition_state(store.get(paths.partition_state(name, 0)).data)
                for name in self.topics
            }
            self.broker_configs = {
                name: paths.decode_config(store.get(paths.broker_config(name)).data)
                for name in store.children(paths.BROKER_CONFIGS)
            }


def config(kind, entity, name, value):
    return records.ConfigRecord(resource_type=kind, resource_name=entity, name=name, value=value)


def test_topic_of_kraft_is_registered_with_id_settings_and_a_new_epoch(tmp_path):
    more = [
        config(4, "1", "log.cleaner.threads", "2"),
        records.FeatureLevelRecord(name="metadata.version", feature_level=21),
        records.ProducerIdsRecord(broker_id=1, broker_epoch=3, next_producer_id=7000),
    ]
    directory = kraft_dir(tmp_path / "data", [*ORDERS, *more])
    before = all_files(directory)

    assert adopt(directory) == 0

    found = Registered(directory)
    assert found.topics == {"orders": (TOPIC_ID, {0: [1]})}
    assert found.configs == {"orders": {"retention.ms": "-1"}}
    assert found.states == {"orders": (1, 5, [1])}
    assert found.cluster_id == CLUSTER_ID
    assert found.last_producer_id == 6999
    assert found.broker_configs == {"1": {"log.cleaner.threads": "2"}}
    assert found.features == {"metadata.version": 21}
    after = all_files(directory)
    assert after.pop(FILE_NAME)
    assert after == before


def test_settings_of_neither_topics_nor_brokers_are_told_about(tmp_path, capsys):
    more = [config(16, "a-subscription", "interval.ms", "30000"), config(32, "g", "x", "1")]
    directory = kraft_dir(tmp_path / "data", [*ORDERS, *more])

    assert adopt(directory, dry_run=True) == 0

    out = capsys.readouterr().out
    assert "Client metrics a-subscription: its settings are not kept: interval.ms=30000" in out
    assert "Group g: settings that kbroker does not have: x=1" in out


def test_topic_of_zookeeper_mode_is_registered_so_that_nothing_is_deleted(tmp_path, capsys):
    directory = zookeeper_dir(tmp_path)
    (directory / "cleaner-offset-checkpoint").write_text("0\n1\norders 0 3\n")
    write_log(directory, "__consumer_offsets-0", None)

    assert adopt(directory) == 0

    found = Registered(directory)
    assert found.configs["orders"] == {
        "retention.ms": "-1",
        "retention.bytes": "-1",
        "cleanup.policy": "compact",
    }
    assert found.configs["__consumer_offsets"]["cleanup.policy"] == "compact"
    assert found.states["orders"] == (1, 4, [1])
    assert found.last_producer_id > 2345
    assert "are unknown" in capsys.readouterr().out


def test_topic_that_the_metadata_does_not_know_is_told_and_left_alone(tmp_path, capsys):
    directory = kraft_dir(tmp_path)
    write_log(directory, "gone-0", None)

    assert adopt(directory) == 0

    assert "gone" not in Registered(directory).topics
    assert "Topic gone is on disk but not in the metadata" in capsys.readouterr().out


def test_dry_run_tells_the_plan_and_changes_nothing(tmp_path, capsys):
    directory = kraft_dir(tmp_path)
    (directory / ".lock").unlink()
    before = all_files(directory)

    assert adopt(directory, dry_run=True) == 0

    assert all_files(directory) == before
    text = capsys.readouterr().out
    assert "orders  1 partition" in text
    assert "5 offsets" in text
    assert "retention.ms=-1" in text
    assert "Nothing was changed" in text


def test_second_run_says_nothing_to_do(tmp_path, capsys):
    directory = kraft_dir(tmp_path)
    adopt(directory)
    before = all_files(directory)

    assert adopt(directory) == 0

    assert "Nothing to do: 1 topic registered in " in capsys.readouterr().out
    assert all_files(directory) == before


def test_run_after_kafka_continued_is_refused(tmp_path, capsys):
    """Topics created by Kafka meanwhile would be missing silently."""
    directory = kraft_dir(tmp_path)
    adopt(directory)
    shutil.rmtree(directory / "__cluster_metadata-0")
    write_metadata(directory, [*ORDERS, records.TopicRecord(name="new", topic_id=bytes(16))])

    assert "Kafka has run on this directory" in refused(capsys, directory)


def test_directory_in_use_is_refused(tmp_path, capsys):
    """A JVM holds it like this: with a record lock, in another process."""
    directory = kraft_dir(tmp_path)
    ready, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        fd = os.open(directory / ".lock", os.O_RDWR)
        fcntl.lockf(fd, fcntl.LOCK_EX)
        os.write(tell, b"x")
        os.read(os.pipe()[0], 1)
    os.read(ready, 1)
    try:
        assert "a broker is using" in refused(capsys, directory)
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)


def test_foreign_directory_is_refused(tmp_path, capsys):
    (tmp_path / "photos").mkdir()

    assert "meta.properties is missing" in refused(capsys, tmp_path)


def test_directory_of_something_else_inside_is_refused(tmp_path, capsys):
    directory = kraft_dir(tmp_path)
    (directory / "photos").mkdir()

    assert f"{directory}/photos is not a partition directory" in refused(capsys, directory)


@pytest.mark.parametrize(
    "text",
    ["", "version=7\n", "version=1\ncluster.id=x\n", "version=1\nnode.id=1\n", "\\u12"],
)
def test_damaged_meta_properties_is_named(tmp_path, capsys, text):
    directory = kraft_dir(tmp_path)
    (directory / "meta.properties").write_text(text)

    assert f"{directory}/meta.properties" in refused(capsys, directory)


def test_directories_of_two_clusters_are_refused(tmp_path, capsys):
    first = kraft_dir(tmp_path / "a")
    write_meta(tmp_path / "b", cluster_id="other")

    assert "belong to different brokers" in refused(capsys, first, tmp_path / "b")


def test_partition_in_two_directories_is_refused(tmp_path, capsys):
    first = kraft_dir(tmp_path / "a")
    write_meta(tmp_path / "b")
    write_log(tmp_path / "b", "orders-0", TOPIC_ID)

    assert "also has this partition" in refused(capsys, first, tmp_path / "b")


def test_partition_that_a_checkpoint_names_and_is_not_there_is_refused(tmp_path, capsys):
    directory = zookeeper_dir(tmp_path)
    write_log(directory, "payments-0", None)
    shutil.rmtree(directory / "payments-0")

    assert f"{directory}/payments-0: missing" in refused(capsys, directory)


def test_partition_that_the_metadata_names_and_is_not_there_is_refused(tmp_path, capsys):
    other = records.PartitionRecord(
        partition_id=1, topic_id=TOPIC_ID, replicas=[1], isr=[1], leader=1, leader_epoch=0,
        partition_epoch=0, directories=[bytes(range(200, 216))],
    )  # fmt: skip
    directory = kraft_dir(tmp_path, [*ORDERS, other])

    text = refused(capsys, directory)
    assert f"{directory}/orders-1: missing: it was in the directory with directory.id=" in text
    assert adopt(directory, missing_begin_empty=True) == 0
    assert Registered(directory).topics["orders"][1] == {0: [1], 1: [1]}


def test_log_cut_short_is_refused(tmp_path, capsys):
    directory = zookeeper_dir(tmp_path)
    log = directory / "orders-0" / f"{0:020}.log"
    log.write_bytes(log.read_bytes()[:-1])

    assert f"{log} ends at offset 4, but was synced up to 5" in refused(capsys, directory)


@pytest.mark.parametrize(
    ("lost", "told"),
    [(1, "although the broker was stopped cleanly"), (78, "00005.snapshot was written at 5")],
)
def test_log_cut_short_is_refused_without_its_checkpoint(tmp_path, capsys, lost, told):
    """In the middle of a batch, and between two."""
    directory = zookeeper_dir(tmp_path)
    (directory / "recovery-point-offset-checkpoint").unlink()
    log = directory / "orders-0" / f"{0:020}.log"
    log.write_bytes(log.read_bytes()[:-lost])

    text = refused(capsys, directory)
    assert str(log) in text
    assert told in text
    # A crashed broker may leave just that.
    (directory / ".kafka_cleanshutdown").unlink()
    assert adopt(directory) == 0


def test_log_without_files_is_refused(tmp_path, capsys):
    directory = zookeeper_dir(tmp_path)
    (directory / "orders-0" / f"{0:020}.log").unlink()

    assert "no .log file is left" in refused(capsys, directory)


def test_missing_segment_in_between_is_refused(tmp_path, capsys):
    directory = zookeeper_dir(tmp_path)
    log = directory / "orders-0" / f"{0:020}.log"
    data = log.read_bytes()
    (directory / "orders-0" / f"{4:020}.log").write_bytes(data[4 * len(data) // 5 :])
    log.write_bytes(data[: 2 * len(data) // 5])

    text = refused(capsys, directory)
    assert f"{log} ends at offset 2, but the next file begins at 4" in text


def test_directory_of_a_deleted_topic_of_the_same_name_is_refused(tmp_path, capsys):
    directory = kraft_dir(tmp_path)
    (directory / "orders-0" / "partition.metadata").write_text(
        "version: 0\ntopic_id: 6L6rrWOfQ06yzhhazyqMDg"
    )

    assert "orders-0/partition.metadata: topic id 6L6rrWOfQ06yzhhazyqMDg" in refused(
        capsys, directory
    )


def test_missing_metadata_log_is_refused_and_found_elsewhere(tmp_path, capsys):
    directory = kraft_dir(tmp_path / "data")
    elsewhere = tmp_path / "metadata"
    elsewhere.mkdir()
    (directory / "__cluster_metadata-0").rename(elsewhere / "__cluster_metadata-0")

    assert "give that with --metadata-log-dir" in refused(capsys, directory)
    assert adopt(directory, metadata_log_dir=elsewhere) == 0


def test_damaged_checkpoint_is_named(tmp_path, capsys):
    directory = kraft_dir(tmp_path)
    (directory / "recovery-point-offset-checkpoint").write_text("0\n9\n")

    assert "recovery-point-offset-checkpoint: 9 entries expected" in refused(capsys, directory)


def test_configuration_of_another_broker_is_refused(tmp_path, capsys):
    directory = kraft_dir(tmp_path / "data")
    file = tmp_path / "server.properties"
    file.write_text(f"broker.id=4\nlog.dirs={directory}\n")

    assert main(["-c", str(file)]) == EXIT_REFUSED
    assert "belongs to broker 1, but the configuration says 4" in capsys.readouterr().err
    assert not (directory / FILE_NAME).exists()


def test_directories_come_from_the_configuration(tmp_path):
    directory = kraft_dir(tmp_path / "data")
    file = tmp_path / "server.properties"
    file.write_text(f"node.id=1\nlog.dirs={directory}\nprocess.roles=broker,controller\n")

    assert main(["--config", str(file)]) == 0
    assert (directory / FILE_NAME).exists()


@pytest.mark.parametrize("arguments", [[], ["-c", "/no/such/file"]])
def test_no_directories_is_wrong_usage(arguments, capsys):
    assert main(arguments) == EXIT_USAGE
    assert "kbroker-adopt: " in capsys.readouterr().err


def test_plan_tells_what_is_not_kept(tmp_path, capsys):
    more = [
        config(2, "orders", "segment.bytes", "many"),
        config(2, "orders", "my.own.setting", "x"),
        config(4, "", "listeners", "PLAINTEXT://:1"),
        config(4, "2", "log.cleaner.threads", "2"),
        records.AccessControlEntryRecord(id=bytes(16), principal="User:a"),
        records.UserScramCredentialRecord(name="a", mechanism=1),
        records.PartitionChangeRecord(partition_id=0, topic_id=TOPIC_ID, isr=[2], replicas=[1, 2]),
    ]
    directory = kraft_dir(tmp_path, [*ORDERS, *more])

    assert adopt(directory, dry_run=True) == 0

    text = capsys.readouterr().out
    assert "segment.bytes=many is not kept" in text
    assert "my.own.setting=x is kept, but has no effect" in text
    assert "listeners is not kept" in text
    assert "Settings of other brokers (2) are not kept" in text
    assert "1 access rule of the cluster cannot be kept" in text
    assert "1 SCRAM credential" in text
    assert "replicas on other brokers are dropped" in text
    assert "partitions [0] were not in sync here" in text


def test_last_replica_that_stopped_cleanly_has_every_acknowledged_record(tmp_path, capsys):
    """Kafka 4 takes it out of the ISR then, and remembers it as eligible (KIP-966)."""
    stopped = records.PartitionChangeRecord(
        partition_id=0, topic_id=TOPIC_ID, leader=-1, isr=[], eligible_leader_replicas=[1]
    )
    directory = kraft_dir(tmp_path, [*ORDERS, stopped])

    assert adopt(directory, dry_run=True) == 0

    assert "not in sync" not in capsys.readouterr().out


def test_settings_of_groups_are_kept(tmp_path, capsys):
    """Including two settings that are valid only together."""
    more = [
        config(32, "a/group", "consumer.heartbeat.interval.ms", "15000"),
        config(32, "a/group", "consumer.session.timeout.ms", "50000"),
        config(32, "a/group", "share.auto.offset.reset", "earliest"),
        config(32, "b", "consumer.session.timeout.ms", "1"),
    ]
    directory = kraft_dir(tmp_path, [*ORDERS, *more])

    assert adopt(directory) == 0

    with store_to_read(str(directory)) as store:
        rows = {
            paths.group_of_config(node.path): paths.decode_config(node.data)
            for node in store.subtree(paths.GROUP_CONFIGS)
            if node.data
        }
    settings = {"consumer.heartbeat.interval.ms": "15000", "consumer.session.timeout.ms": "50000"}
    assert rows == {"a/group": settings}
    out = capsys.readouterr().out
    assert "Settings of group a/group: consumer.heartbeat.interval.ms=15000" in out
    assert "a/group: settings that kbroker does not have: share.auto.offset.reset=earliest" in out
    assert "Group b: its settings are not kept: consumer.session.timeout.ms" in out


def test_older_message_format_that_kraft_ignored_is_left_out(tmp_path, capsys):
    """kbroker honours it: every idempotent producer, the default in Java, would be rejected."""
    more = [
        config(2, "orders", "message.format.version", "0.10.2-IV0"),
        config(2, "orders", "segment.bytes", "4096"),
    ]
    directory = kraft_dir(tmp_path, [*ORDERS, *more])

    assert adopt(directory) == 0

    assert Registered(directory).configs == {
        "orders": {"retention.ms": "-1", "segment.bytes": "4096"}
    }
    out = capsys.readouterr().out
    assert "Topic orders: message.format.version=0.10.2-IV0 is not kept: Kafka ignored it" in out


def test_interrupted_first_start_leaves_a_store_that_is_filled(tmp_path):
    directory = kraft_dir(tmp_path)
    NodeFile(str(directory)).close()

    assert adopt(directory) == 0
    assert "orders" in Registered(directory).topics


def test_full_disk_leaves_the_directory_as_it_was(tmp_path, capsys, monkeypatch):
    directory = kraft_dir(tmp_path)

    def no_room(_source, target):
        with open(target, "wb") as file:
            file.write(b"some")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copyfile", no_room)
    assert "no space left on device" in refused(capsys, directory)
