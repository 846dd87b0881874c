"""Data directories: identity, marker, lock."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

import pytest
from support.running.descriptors import open_files

from kbroker.clock import CONFIRMED_MS
from kbroker.config.loader import BrokerConfig
from kbroker.errors import ConfigError
from kbroker.metastore import paths
from kbroker.metastore.node_file import NodeFile
from kbroker.storage import files
from kbroker.supervisor import data_dirs
from kbroker.supervisor.data_dirs import DataDirs

pytestmark = pytest.mark.unit


def config(*paths: Path, **settings: str) -> BrokerConfig:
    named = {name.replace("_", "."): value for name, value in settings.items()}
    return BrokerConfig({"log.dirs": ",".join(map(str, paths)), **named})


def begun(found: BrokerConfig) -> DataDirs:
    dirs = DataDirs.open(found)
    dirs.begin()
    return dirs


def meta(path: Path) -> dict[str, str]:
    lines = (path / "meta.properties").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines)


def test_first_start_writes_identity_into_every_directory(tmp_path: Path) -> None:
    dirs = begun(config(tmp_path / "a", tmp_path / "b", broker_id="7"))

    assert dirs.broker_id == 7
    assert meta(tmp_path / "a") == meta(tmp_path / "b")
    assert meta(tmp_path / "a") == {
        "version": "0",
        "broker.id": "7",
        "cluster.id": dirs.cluster_id,
    }
    dirs.release()


def test_new_directories_are_synced_down_from_the_first_that_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A synced file is lost on a disk that has lost the name of its directory."""
    synced: list[str] = []
    monkeypatch.setattr(files, "sync_directory", synced.append)

    begun(config(tmp_path / "a" / "b" / "c")).release()

    made = [str(tmp_path), str(tmp_path / "a"), str(tmp_path / "a" / "b")]
    assert synced[:3] == made


def test_later_start_keeps_identity(tmp_path: Path) -> None:
    first = begun(config(tmp_path, broker_id="7"))
    first.release()

    second = begun(config(tmp_path))

    assert (second.broker_id, second.cluster_id) == (7, first.cluster_id)
    second.release()


def test_unset_broker_id_starts_above_the_reserved_ones(tmp_path: Path) -> None:
    dirs = begun(config(tmp_path, reserved_broker_max_id="1000"))

    assert dirs.broker_id == 1001
    dirs.release()


def test_unset_broker_id_without_generation_is_refused(tmp_path: Path) -> None:
    settings = {"broker.id.generation.enable": "false", "log.dirs": str(tmp_path)}

    with pytest.raises(ConfigError, match=r"broker\.id"):
        begun(BrokerConfig(settings))


def test_other_broker_id_than_the_data_says_is_refused(tmp_path: Path) -> None:
    begun(config(tmp_path, broker_id="7")).release()

    with pytest.raises(ConfigError, match=r"broker\.id.*8.*7"):
        begun(config(tmp_path, broker_id="8"))


def test_directories_of_two_clusters_are_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        begun(config(tmp_path / name, broker_id="7")).release()

    with pytest.raises(ConfigError, match="single cluster"):
        begun(config(tmp_path / "a", tmp_path / "b", broker_id="7"))


def test_new_directory_beside_old_ones_joins_them(tmp_path: Path) -> None:
    begun(config(tmp_path / "a", broker_id="7")).release()

    dirs = begun(config(tmp_path / "a", tmp_path / "b"))

    assert meta(tmp_path / "b") == meta(tmp_path / "a")
    dirs.release()


def test_kafka_file_with_more_properties_keeps_them(tmp_path: Path) -> None:
    text = "#Mon Jan 01\ncluster.id=abc\nversion=0\nbroker.id=3\nextra=1\n"
    (tmp_path / "meta.properties").write_text(text)

    dirs = begun(config(tmp_path))

    assert (dirs.broker_id, dirs.cluster_id) == (3, "abc")
    assert (tmp_path / "meta.properties").read_text() == text
    dirs.release()


def test_unusable_directory_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    dirs = begun(config(tmp_path / "file", tmp_path / "good"))

    assert dirs.paths == [str(tmp_path / "good")]
    dirs.release()


def test_unusable_directory_that_has_the_metadata_is_not_left_out(tmp_path: Path) -> None:
    """A broker that starts without its topics would be worse than one that does not start."""
    begun(config(tmp_path / "a", tmp_path / "b", broker_id="7")).release()
    (tmp_path / "a").rename(tmp_path / "lost")
    (tmp_path / "a").touch()
    with pytest.raises(ConfigError, match=r"kbroker-metadata\.db"):
        begun(config(tmp_path / "a", tmp_path / "b"))

    NodeFile(str(tmp_path / "b")).close()
    dirs = begun(config(tmp_path / "a", tmp_path / "b"))
    assert dirs.paths == [str(tmp_path / "b")]
    dirs.release()


def test_no_usable_directory_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ConfigError, match=r"log\.dirs=.*\(not a directory\)"):
            begun(config(path))


def test_marker_is_taken_once_and_only_a_clean_stop_leaves_it(tmp_path: Path) -> None:
    (tmp_path / "topic-0").mkdir()
    first = begun(config(tmp_path))
    first.mark_clean()
    first.release()

    second = begun(config(tmp_path))
    second.release()
    third = begun(config(tmp_path))
    third.release()

    path = str(tmp_path)
    assert (first.clean_start[path], second.clean_start[path], third.clean_start[path]) == (
        False,
        True,
        False,
    )


def test_directory_that_failed_is_not_marked_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    both = config(tmp_path / "good", tmp_path / "bad")
    first = begun(both)
    for path in first.paths:
        Path(path, "topic-0").mkdir()

    first.mark_clean({str(tmp_path / "bad"), "/left/out/at/start"})
    first.release()

    (line,) = caplog.messages
    assert line == f"log directory {tmp_path / 'bad'} failed; the next start recovers its logs"
    second = begun(both)
    assert list(second.clean_start.values()) == [True, False]
    second.release()


def test_start_that_fails_before_it_begins_changes_nothing(tmp_path: Path) -> None:
    """An occupied port cost a recovery of all logs at the next start."""
    (tmp_path / "old" / "topic-0").mkdir(parents=True)
    first = begun(config(tmp_path / "old", broker_id="7"))
    first.mark_clean()
    first.release()
    both = config(tmp_path / "old", tmp_path / "new")

    DataDirs.open(both).release()

    assert os.listdir(tmp_path / "new") == [".lock"]
    second = begun(both)
    assert second.broker_id == 7
    assert second.clean_start == {str(tmp_path / "old"): True, str(tmp_path / "new"): True}
    second.release()


def test_empty_directory_is_clean(tmp_path: Path) -> None:
    dirs = begun(config(tmp_path))

    assert dirs.clean_start == {str(tmp_path): True}
    dirs.release()


def test_locked_directory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_dirs, "LOCK_WAIT_S", 0)
    first = begun(config(tmp_path))

    with pytest.raises(ConfigError, match="no other broker"):
        begun(config(tmp_path))

    first.release()
    begun(config(tmp_path)).release()


def test_refused_start_leaves_no_descriptor(tmp_path: Path) -> None:
    for name in ("a", "b"):
        begun(config(tmp_path / name, broker_id="7")).release()

    with pytest.raises(ConfigError):
        begun(config(tmp_path / "a", tmp_path / "b"))

    assert not open_files(tmp_path)


def test_lost_identity_is_taken_from_the_metadata_store(tmp_path: Path) -> None:
    first = begun(config(tmp_path))
    first.release()
    store = NodeFile(str(tmp_path))
    transaction = store.multi()
    for path in paths.PERSISTENT_PATHS:
        transaction.create(path)
    transaction.create(paths.CLUSTER_ID, paths.encode_cluster_id(first.cluster_id))
    transaction.commit()
    store.close()
    (tmp_path / "meta.properties").unlink()

    second = begun(config(tmp_path))

    assert second.cluster_id == first.cluster_id == meta(tmp_path)["cluster.id"]
    second.release()


def test_lost_identity_beside_a_damaged_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / "kbroker-metadata.db").write_bytes(b"\xa5" * 5000)

    with pytest.raises(ConfigError, match=r"kbroker-metadata\.db"):
        begun(config(tmp_path))

    assert not (tmp_path / "meta.properties").exists()


def test_unreadable_identity_is_named(tmp_path: Path) -> None:
    (tmp_path / "meta.properties").write_text("cluster.id=\\u12\n")

    with pytest.raises(ConfigError, match=r"meta.properties.*hexadecimal"):
        begun(config(tmp_path))


def test_identity_written_by_kraft_stays_as_it_is(tmp_path: Path) -> None:
    """Kafka in KRaft mode must find its own version of the file on its way back."""
    text = "node.id=4\nversion=1\ndirectory.id=khs8pYlCMdwJyzXGOrzB0w\ncluster.id=abc\n"
    (tmp_path / "meta.properties").write_text(text)

    dirs = begun(config(tmp_path))

    assert (dirs.broker_id, dirs.cluster_id) == (4, "abc")
    dirs.release()
    assert (tmp_path / "meta.properties").read_text() == text


@pytest.mark.parametrize("left", ["__cluster_metadata-0", "kbroker-metadata.db.released"])
def test_directory_of_a_kafka_is_refused_and_not_changed(tmp_path: Path, left: str) -> None:
    """Not even its clean shutdown marker, which has a content there."""
    (tmp_path / left).mkdir()
    contents = {
        ".lock": "",
        ".kafka_cleanshutdown": '{"version":0,"brokerEpoch":7}',
        "meta.properties": "version=1\nnode.id=1\ncluster.id=MN6TlMJpeadb3D_8LPoANA\n",
    }
    for name, text in contents.items():
        (tmp_path / name).write_text(text)

    with pytest.raises(ConfigError, match="kbroker-adopt"):
        begun(config(tmp_path))

    assert {
        path.name: path.read_text() for path in tmp_path.iterdir() if path.is_file()
    } == contents


def test_adopted_directory_of_a_kafka_is_taken(tmp_path: Path) -> None:
    (tmp_path / "__cluster_metadata-0").mkdir()
    NodeFile(str(tmp_path)).close()

    begun(config(tmp_path)).release()

    assert (tmp_path / "meta.properties").exists()


@pytest.mark.parametrize(
    ("hours", "trusted"), [(0, True), (-0.9, True), (-2, False), (0.9, True), (2, False)]
)
@pytest.mark.parametrize("name", [".kafka_cleanshutdown", "recovery-point-offset-checkpoint"])
def test_clock_is_trusted_at_once_only_if_it_continues_where_the_last_run_left_it(
    tmp_path: Path, name: str, hours: float, trusted: bool
) -> None:
    """A machine that starts with a wrong clock must not let tombstones expire early."""
    begun(config(tmp_path)).release()
    (tmp_path / name).write_text("0\n0\n")
    when = time.time() + 3600 * hours
    os.utime(tmp_path / name, (when, when))

    dirs = begun(config(tmp_path))

    assert dirs.clock_guard.is_trusted(CONFIRMED_MS) == trusted
    dirs.release()


def test_clock_is_trusted_where_no_broker_has_run(tmp_path: Path) -> None:
    dirs = begun(config(tmp_path))

    assert dirs.clock_guard.is_trusted(CONFIRMED_MS)
    dirs.release()


# -- with ZooKeeper --------------------------------------------------------------------------------


def test_metadata_of_its_own_beside_a_zookeeper_is_refused_with_the_way_out(
    tmp_path: Path,
) -> None:
    NodeFile(str(tmp_path)).close()

    with pytest.raises(ConfigError, match=r"--back-to kafka-2\.7") as refused:
        DataDirs.open(config(tmp_path, zookeeper_connect="127.0.0.1:1"))
    assert refused.value.key == "zookeeper.connect"


def test_known_broker_of_a_known_cluster_starts_without_zookeeper(tmp_path: Path) -> None:
    """Directories of Apache Kafka are accepted unchanged."""
    (tmp_path / "meta.properties").write_text("version=0\nbroker.id=5\ncluster.id=abc\n")

    dirs = begun(config(tmp_path, zookeeper_connect="127.0.0.1:1/kafka"))

    assert (dirs.broker_id, dirs.cluster_id) == (5, "abc")
    dirs.release()


def test_new_broker_without_its_zookeeper_is_told_where_it_was_looked_for(tmp_path: Path) -> None:
    asked = config(tmp_path, zookeeper_connect="127.0.0.1:1", zookeeper_connection_timeout_ms="300")
    with pytest.raises(ConfigError, match="no connection within 300 ms") as refused:
        DataDirs.open(asked)
    assert refused.value.value == "127.0.0.1:1"
    assert not (tmp_path / "meta.properties").exists()


def test_directory_of_another_user_is_refused_with_its_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A volume of a container is often root's."""

    def refuse(path: str) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    (tmp_path / "a").mkdir()
    monkeypatch.setattr(data_dirs, "make_directories", refuse)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)

    with pytest.raises(ConfigError, match=r"denied: it belongs to user \d+, this one is"):
        DataDirs.open(config(tmp_path / "a"))
