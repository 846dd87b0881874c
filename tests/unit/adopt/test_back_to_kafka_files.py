"""``kbroker-adopt --back-to``: what Kafka gets, and refusals that leave no trace."""

import errno
import os
import shutil
import socket
import struct
import tarfile
import threading

import pytest
from support.brokers.owners import as_root, hand_over, not_handed_over
from support.storage.kraft_dirs import (
    CLUSTER_ID,
    DIRECTORY_ID,
    ORDERS,
    TOPIC_ID,
    all_files,
    kraft_dir,
)

from kbroker.adopt import metadata_records as records
from kbroker.adopt import older_records, release, to_kraft, to_zookeeper, zookeeper
from kbroker.adopt.batch_files import batches_of
from kbroker.adopt.errors import Refusal
from kbroker.adopt.holdings import Holdings
from kbroker.adopt.record_codec import decode_record
from kbroker.cli.adopt import EXIT_REFUSED, EXIT_UNFINISHED, EXIT_USAGE, main
from kbroker.coordinator.records import offsets_topic, transaction_topic
from kbroker.metastore import paths
from kbroker.metastore.node_file import NodeFile
from kbroker.metastore.store_files import FILE_NAME
from kbroker.record.builder import BatchBuilder

pytestmark = pytest.mark.unit

MORE = [
    records.FeatureLevelRecord(name="metadata.version", feature_level=19),
    records.ProducerIdsRecord(broker_id=1, broker_epoch=3, next_producer_id=7000),
    records.ConfigRecord(resource_type=4, resource_name="", name="log.cleaner.threads", value="2"),
]


@pytest.fixture
def directory(tmp_path):
    """A directory that was adopted, used by kbroker and shut down cleanly."""
    path = kraft_dir(tmp_path / "data", [*ORDERS, *MORE])
    assert main(["--log-dirs", str(path)]) == 0
    return path


def back(directory, *arguments):
    return main(["--log-dirs", str(directory), "--back-to", *arguments])


def refused(capsys, directory, *arguments):
    before = all_files(directory)
    assert back(directory, *arguments) == EXIT_REFUSED
    assert all_files(directory) == before
    return capsys.readouterr().err


def told(path):
    """Records of a bootstrap.checkpoint, and the types of its control records."""
    rows, controls = [], []
    for batch in batches_of(str(path), partial_tail=False):
        for record in batch:
            if batch.is_control:
                controls.append(struct.unpack(">hh", record.key)[1])
            else:
                rows.append(decode_record(record.value))
    return rows, controls


def test_kraft_is_told_of_topics_settings_features_and_producer_ids(directory):
    assert back(directory, "kafka-3.9") == 0

    rows, controls = told(directory / "bootstrap.checkpoint")
    assert controls == [3, 4]
    assert rows[0] == MORE[0]
    assert records.TopicRecord(name="orders", topic_id=TOPIC_ID) in rows
    (partition,) = [row for row in rows if isinstance(row, records.PartitionRecord)]
    # Adopted with epoch 5; a new leader has a new epoch.
    assert (partition.leader, partition.leader_epoch) == (-1, 6)
    assert (partition.replicas, partition.isr) == ([1], [1])
    assert partition.directories == [DIRECTORY_ID]
    assert ORDERS[2] in rows
    assert MORE[2] in rows
    assert rows[-1].next_producer_id == 7000
    assert not (directory / FILE_NAME).exists()
    assert (directory / f"{FILE_NAME}.released").exists()
    assert not (directory / "__cluster_metadata-0").exists()
    meta = (directory / "meta.properties").read_text()
    assert f"cluster.id={CLUSTER_ID}" in meta
    assert "node.id=1" in meta


def test_features_that_kafka_has_not_are_left_out_and_told(tmp_path, capsys):
    """Kafka's controller exits at a feature level that it does not support."""
    features = {"metadata.version": 25, "transaction.version": 2, "group.version": 1}
    rows = [records.FeatureLevelRecord(name=name, feature_level=n) for name, n in features.items()]
    directory = kraft_dir(tmp_path / "data", [*ORDERS, *rows])
    assert main(["--log-dirs", str(directory)]) == 0
    capsys.readouterr()

    assert back(directory, "kafka-3.9") == 0

    found, _ = told(directory / "bootstrap.checkpoint")
    levels = [
        (row.name, row.feature_level)
        for row in found
        if isinstance(row, records.FeatureLevelRecord)
    ]
    assert levels == [("metadata.version", 21)]
    out = capsys.readouterr().out
    assert "metadata.version is downgraded from 25 to 21" in out
    assert "transaction.version=2 is not handed over" in out
    assert "group.version=1 is not handed over" in out


def test_settings_of_groups_are_told_about(directory, capsys):
    """Kafka 3.9 has no such settings; their owner should know that they are lost."""
    store = NodeFile(str(directory))
    config = paths.encode_config({"consumer.session.timeout.ms": "50000"})
    transaction = store.multi()
    transaction.create(paths.group_config("a/group"), config)
    transaction.commit()
    store.close()

    assert back(directory, "kafka-3.9", "--dry-run") == 0

    told_of = "Settings of group a/group are not handed over"
    assert told_of in capsys.readouterr().out


def test_next_steps_name_the_voters(directory, capsys):
    """A dynamic quorum has its voters in the log that was set aside: without that setting Kafka
    would wait for a controller forever.
    """
    assert back(directory, "kafka-3.9") == 0

    assert "controller.quorum.voters=1@HOST:PORT" in capsys.readouterr().out


@as_root
def test_files_that_root_writes_are_of_the_owner_of_the_directory(tmp_path):
    """The broker's account could not open a store owned by root, and would not start."""
    directory = kraft_dir(tmp_path / "data", [*ORDERS, *MORE])
    hand_over(directory)

    assert main(["--log-dirs", str(directory)]) == 0
    assert list(not_handed_over(directory)) == []

    assert back(directory, "kafka-3.9") == 0
    assert list(not_handed_over(directory)) == []


def test_dry_run_changes_nothing(directory, capsys):
    before = all_files(directory)

    assert back(directory, "kafka-3.9", "--dry-run") == 0

    assert all_files(directory) == before
    assert "1 topic with 1 partition, " in capsys.readouterr().out


def test_interrupted_run_is_done_by_the_next(directory, monkeypatch):
    """The store is moved last: until then kbroker and this command still have everything."""

    def interrupted(_place):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(release, "retire_store", interrupted)
        assert back(directory, "kafka-3.9") > 2
    assert (directory / FILE_NAME).exists()
    assert back(directory, "kafka-3.9") == 0
    assert told(directory / "bootstrap.checkpoint")[1] == [3, 4]


def test_second_run_is_refused(directory, capsys):
    back(directory, "kafka-3.9")
    capsys.readouterr()

    assert f"{FILE_NAME} is missing" in refused(capsys, directory, "kafka-3.9")


def test_stop_that_was_not_in_order_is_refused(directory, capsys):
    (directory / ".kafka_cleanshutdown").unlink()

    assert "was not stopped cleanly" in refused(capsys, directory, "kafka-3.9")


def test_directory_of_another_cluster_is_refused(directory, capsys):
    (directory / "meta.properties").write_text("version=0\nbroker.id=1\ncluster.id=other\n")

    assert "meta.properties does not name a broker of" in refused(capsys, directory, "kafka-3.9")


def test_zookeeper_must_be_named(directory, capsys):
    assert back(directory, "kafka-2.7") == EXIT_USAGE
    assert "--zookeeper HOST:PORT" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["kafka-3.9", "--without-metadata"], "--without-metadata does not apply to --back-to"),
        (["kafka-3.9", "--without-remote-records"], "--without-remote-records does not apply to"),
        (["kafka-3.9", "--zookeeper", "z:2181"], "--zookeeper does not apply to --back-to"),
    ],
)
def test_option_without_effect_is_wrong_usage(directory, capsys, options, says):
    before = all_files(directory)

    assert back(directory, *options) == EXIT_USAGE

    assert says in capsys.readouterr().err
    assert all_files(directory) == before


def test_stray_directory_is_refused_where_kafka_would_not_start(directory, capsys):
    (directory / f"t-0.{'0' * 32}-stray").mkdir()

    text = refused(capsys, directory, "kafka-2.7", "--zookeeper", "127.0.0.1:1")
    assert "does not start with a directory of that name" in text


def test_zookeeper_that_does_not_respond_is_refused(directory, capsys, monkeypatch):
    pytest.importorskip("kazoo")
    monkeypatch.setattr(zookeeper, "CONNECT_TIMEOUT_S", 0.2)
    text = refused(capsys, directory, "kafka-2.7", "--zookeeper", "127.0.0.1:1")
    assert "does not respond" in text


class MuteZooKeeper:
    """Accepts a session, responds to so many calls with "no such node", then to none.

    hangs_up: it closes the connection then, and takes no other.
    """

    def __init__(self, answers, *, hangs_up):
        self.answers = answers
        self.hangs_up = hangs_up
        self.server = socket.create_server(("127.0.0.1", 0))
        self.connect = f"127.0.0.1:{self.server.getsockname()[1]}"
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        with self.server, self.server.accept()[0] as connection:
            self.talk(connection)

    def talk(self, connection):
        with connection.makefile("rb") as stream:
            stream.read(*struct.unpack(">i", stream.read(4)))
            session = struct.pack(">iiqi16sb", 0, 60_000, 1, 16, bytes(16), 0)
            connection.sendall(struct.pack(">i", len(session)) + session)
            while size := stream.read(4):
                request = stream.read(*struct.unpack(">i", size))
                if self.answers:
                    self.answers -= 1
                    no_node = request[:4] + struct.pack(">qi", 1, -101)
                    connection.sendall(struct.pack(">i", len(no_node)) + no_node)
                elif self.hangs_up:
                    return


@pytest.mark.parametrize("hangs_up", [False, True])
@pytest.mark.parametrize("answers", [0, 1, 2])
def test_zookeeper_that_stops_responding_is_refused(
    directory, capsys, monkeypatch, answers, hangs_up
):
    pytest.importorskip("kazoo")
    monkeypatch.setattr(zookeeper, "CALL_TIMEOUT_S", 0.5)
    server = MuteZooKeeper(answers, hangs_up=hangs_up)

    text = refused(capsys, directory, "kafka-2.7", "--zookeeper", server.connect)

    assert server.connect in text
    assert "nothing was changed" in text
    assert hangs_up or "does not respond within 0.5 s" in text


def test_zookeeper_that_is_lost_half_way_leaves_the_rest_to_the_next_run(
    directory, capsys, monkeypatch
):
    pytest.importorskip("kazoo")
    monkeypatch.setattr(zookeeper, "CALL_TIMEOUT_S", 3)
    server = MuteZooKeeper(5, hangs_up=True)

    assert back(directory, "kafka-2.7", "--zookeeper", server.connect) == EXIT_UNFINISHED

    text = capsys.readouterr().err
    assert server.connect in text
    assert "run the same command again" in text
    assert (directory / FILE_NAME).exists()


def test_nodes_are_deleted_with_what_is_below_them(monkeypatch):
    deleted = []
    below = {"/a": ["b", "c"], "/a/b": ["d"]}

    class Done:
        def __init__(self, value):
            self.value = value

        def get(self, timeout):
            assert timeout == zookeeper.CALL_TIMEOUT_S
            return self.value

    class Client:
        def get_children_async(self, path):
            return Done(below.get(path, []))

        def delete_async(self, path):
            deleted.append(path)
            return Done(None)

    zookeeper.Nodes(Client()).delete("/a", recursive=True)

    assert deleted == ["/a/b/d", "/a/b", "/a/c", "/a"]


def test_move_under_way_is_refused(directory, capsys):
    (directory / f"orders-0.{'0' * 32}-future").mkdir()

    assert "let the move finish" in refused(capsys, directory, "kafka-3.9")


def test_partition_that_is_not_here_is_refused_unless_it_may_begin_empty(directory, capsys):
    shutil.rmtree(directory / "orders-0")

    assert "orders-0: missing" in refused(capsys, directory, "kafka-3.9")

    assert back(directory, "kafka-3.9", "--missing-begin-empty") == 0
    rows, _ = told(directory / "bootstrap.checkpoint")
    (partition,) = [row for row in rows if isinstance(row, records.PartitionRecord)]
    assert partition.directories == [bytes(16)]


def test_run_that_fails_half_way_says_so_and_the_next_ends_it(directory, capsys, monkeypatch):
    def full(*_args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(to_kraft, "replace_file", full)
        assert back(directory, "kafka-3.9") == EXIT_UNFINISHED
    text = capsys.readouterr().err
    assert "run the same command again" in text
    assert "nothing was changed" not in text
    assert back(directory, "kafka-3.9") == 0


def test_metadata_directory_of_its_own_is_named_as_one_to_leave_out(directory, capsys, tmp_path):
    elsewhere = tmp_path / "elsewhere"

    assert back(directory, "kafka-3.9", "--metadata-log-dir", str(elsewhere)) == 0

    assert f"without metadata.log.dir={elsewhere}" in capsys.readouterr().out


class Nodes:
    """Replaces a ZooKeeper client."""

    def __init__(self, nodes):
        self.nodes = dict(nodes)

    def exists(self, path):
        return path in self.nodes

    def get(self, path):
        return self.nodes[path], None

    def get_children(self, path):
        places = (name.rpartition("/") for name in self.nodes)
        return [name for parent, _, name in places if parent == path]

    def ensure_path(self, path):
        self.nodes.setdefault(path, b"")

    def create(self, path, data=b"", makepath=False):
        assert path not in self.nodes
        self.nodes[path] = data

    def set(self, path, data):
        self.nodes[path] = data

    def delete(self, path, recursive=False):
        for name in list(self.nodes):
            if name == path or (recursive and name.startswith(f"{path}/")):
                del self.nodes[name]


def test_zookeeper_keeps_topics_of_other_brokers_and_forgets_an_older_deletion(directory):
    client = Nodes(
        {
            paths.topic("theirs"): paths.encode_topic(bytes(16), {0: [2]}),
            paths.topic("gone"): paths.encode_topic(bytes(16), {0: [1, 2]}),
            paths.delete_topic("orders"): b"",
        }
    )

    to_zookeeper._tell(client, Holdings([str(directory)], str(directory)))

    assert client.exists(paths.topic("theirs"))
    assert client.exists(paths.partition_state("orders", 0))
    assert not client.exists(paths.topic("gone"))
    assert not client.exists(paths.delete_topic("orders"))


def test_zookeeper_with_a_running_broker_is_refused():
    client = Nodes({paths.BROKER_IDS: b"", paths.broker(2): b"{}"})

    with pytest.raises(Refusal, match="brokers 2 are registered"):
        zookeeper.check_alone(client, "zk")


# ---- records that Kafka 2.7 does not know ----

TRANSACTION = transaction_topic.TransactionLogValue(
    producer_id=5, next_producer_id=6, producer_epoch=1, transaction_timeout_ms=1000,
    transaction_status=4, client_transaction_version=2,
)  # fmt: skip


class Places:
    """Replaces Holdings: one partition of an internal topic."""

    def __init__(self, directory, topic, batches):
        path = directory / f"{topic}-0"
        path.mkdir(parents=True)
        self.file = path / f"{0:020}.log"
        self.file.write_bytes(b"".join(batches))
        self.places = {(topic, 0): str(directory)}

    def path_of(self, topic, number):
        return str(self.file.parent)

    def rewritten(self):
        found = older_records.find(self)
        older_records.rewrite(found, lambda _text: None)
        assert not older_records.find(self)
        batches = batches_of(str(self.file), partial_tail=False)
        return sum(found.values()), batches


def batch_of(*rows, base_offset=0, **header):
    builder = BatchBuilder(base_offset=base_offset, leader_epoch=9, **header)
    for at, (key, value) in enumerate(rows):
        builder.append(value, key, 1000 + at)
    return builder.build()


@as_root
def test_segment_that_root_rewrites_is_of_the_owner_of_the_directory(tmp_path):
    """Kafka's account could not append to it."""
    key = transaction_topic.TransactionLogKey(transactional_id="tx")
    batch = batch_of(transaction_topic.RECORDS.encode(key, TRANSACTION, 1))
    places = Places(tmp_path, "__transaction_state", [batch])
    hand_over(tmp_path)

    assert places.rewritten()[0] == 1

    assert list(not_handed_over(tmp_path)) == []


def test_transaction_loses_what_an_older_coordinator_does_not_know(tmp_path):
    key = transaction_topic.TransactionLogKey(transactional_id="t")
    rows = transaction_topic.RECORDS.encode(key, TRANSACTION)
    places = Places(tmp_path, "__transaction_state", [batch_of(rows, (rows[0], None))])

    count, (batch,) = places.rewritten()

    assert count == 1
    assert batch.header.partition_leader_epoch == 9
    first, second = batch.records()
    _, value = transaction_topic.RECORDS.decode(first.key, first.value)
    assert first.value[:2] == b"\0\0"
    assert (value.producer_id, value.transaction_status) == (5, 4)
    assert (second.offset, second.value, second.timestamp) == (1, None, 1001)
    assert os.path.exists(places.file.with_suffix(".index"))


def test_rewriting_that_is_interrupted_leaves_no_index_of_the_file_before(tmp_path, monkeypatch):
    key = transaction_topic.TransactionLogKey(transactional_id="t")
    rows = transaction_topic.RECORDS.encode(key, TRANSACTION)
    places = Places(tmp_path, "__transaction_state", [batch_of(rows)])
    index = places.file.with_suffix(".index")
    index.write_bytes(struct.pack(">ii", 1, 10_000))

    def interrupted(_segment):
        raise KeyboardInterrupt

    monkeypatch.setattr(older_records.Segment, "rebuild_indexes", interrupted)
    with pytest.raises(KeyboardInterrupt):
        places.rewritten()

    assert not older_records.find(places)
    assert not index.exists()


def test_group_of_the_new_protocol_goes_and_every_other_byte_stays(tmp_path):
    group = offsets_topic.RECORDS.encode(
        offsets_topic.ConsumerGroupMetadataKey(group_id="g"),
        offsets_topic.ConsumerGroupMetadataValue(epoch=1),
    )
    commit = offsets_topic.RECORDS.encode(
        offsets_topic.OffsetCommitKey(group="g", topic="t", partition=0),
        offsets_topic.OffsetCommitValue(offset=7, metadata="", commit_timestamp=1),
    )
    newer = offsets_topic.RECORDS.encode(
        offsets_topic.OffsetCommitKey(group="g", topic="t", partition=1),
        offsets_topic.OffsetCommitValue(offset=8, metadata="m", commit_timestamp=1),
        4,
    )
    whole = batch_of(commit)
    in_transaction = {"producer_id": 3, "producer_epoch": 0, "transactional": True}
    places = Places(
        tmp_path,
        "__consumer_offsets",
        [whole, batch_of(group, newer, base_offset=1, **in_transaction)],
    )

    count, (first, second) = places.rewritten()

    assert count == 2
    assert bytes(first.data) == whole
    assert second.is_transactional
    assert second.header.producer_id == 3
    gone, kept = second.records()
    assert gone.value is None
    assert gone.key[:2] == b"\0\1"
    assert kept.value[:2] == b"\0\3"
    assert offsets_topic.RECORDS.decode(kept.key, kept.value)[1].offset == 8


def test_older_metadata_log_is_not_lost(directory):
    before = (directory / "__cluster_metadata-0" / f"{0:020}.log").read_bytes()

    back(directory, "kafka-3.9")

    with tarfile.open(directory / "__cluster_metadata-0.before-kbroker.tar") as tar:
        file = tar.extractfile(f"__cluster_metadata-0/{0:020}.log")
        assert file is not None
        assert file.read() == before


def test_older_metadata_log_that_was_half_removed_does_not_replace_its_archive(
    directory, monkeypatch
):
    """The archive is the only copy of Kafka's metadata."""
    log = f"{0:020}.log"

    whole = shutil.rmtree

    def interrupted(path, *rest, **options):
        if "__cluster_metadata-0" not in str(path):
            whole(path, *rest, **options)  # of the copy of the store
            return
        os.unlink(os.path.join(path, log))
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(to_kraft.shutil, "rmtree", interrupted)
        assert back(directory, "kafka-3.9") == 130

    assert back(directory, "kafka-3.9") == 0

    with tarfile.open(directory / "__cluster_metadata-0.before-kbroker.tar") as tar:
        assert f"__cluster_metadata-0/{log}" in tar.getnames()
    assert not (directory / "__cluster_metadata-0").exists()
