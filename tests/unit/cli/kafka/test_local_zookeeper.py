"""Which ZooKeeper ``kafka-server-start`` uses if its settings name none."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker.cli.kafka.local_zookeeper import MAIN, choose, running_zookeepers
from kbroker.cli.kafka.running import ToolFailed
from kbroker.config.loader import BrokerConfig, load

pytestmark = pytest.mark.unit

JARS = "/venv/pyspark/jars/*"
FOUND = ["localhost:2181"]


@pytest.fixture
def config(tmp_path: Path):
    def made(**settings: str) -> BrokerConfig:
        named = {name.replace("_", "."): value for name, value in settings.items()}
        return load(None, {"log.dirs": str(tmp_path / "data")} | named)[0]

    return made


def test_new_directory_is_used_with_the_zookeeper_that_runs(config):
    choice = choose(config(offsets_topic_replication_factor="2"), FOUND)

    assert choice.overrides == {
        "zookeeper.connect": "localhost:2181",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
    }
    assert choice.note is not None and "zookeeper.connect=localhost:2181" in choice.note


@pytest.mark.parametrize("settings", [
    {"zookeeper_connect": "other:2181"}, {"zookeeper_connect": ""},
    {"process_roles": "broker,controller"},
])  # fmt: skip
def test_settings_that_say_it_are_left_alone(config, settings):
    assert choose(config(**settings), FOUND) == ({}, None)


def test_without_a_zookeeper_a_new_directory_is_that_of_a_single_broker(config):
    assert choose(config(), []) == ({}, None)


def test_directory_of_a_single_broker_stays_one(config, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "kbroker-metadata.db").write_bytes(b"x")

    assert choose(config(), []) == ({}, None)
    choice = choose(config(), FOUND)

    assert choice.overrides == {}
    assert choice.note is not None and "ZooKeeper at localhost:2181 is not used" in choice.note


def test_directory_of_a_cluster_needs_its_zookeeper(config, tmp_path):
    (tmp_path / "data").mkdir()
    meta = tmp_path / "data" / "meta.properties"
    meta.write_text("version=0\nbroker.id=0\n")

    assert choose(config(), FOUND).overrides["zookeeper.connect"] == FOUND[0]
    with pytest.raises(ToolFailed, match="written by a broker with ZooKeeper, and none runs here"):
        choose(config(), [])
    meta.write_text("version=1\nnode.id=0\n")
    assert choose(config(), []) == ({}, None)


def test_several_zookeepers_leave_the_choice_to_the_user(config):
    with pytest.raises(ToolFailed, match="localhost:2181, localhost:2182 run here: set zookeeper"):
        choose(config(), [*FOUND, "localhost:2182"])


def process(root: Path, pid: int, home: Path, *words: str) -> None:
    place = root / str(pid)
    place.mkdir(parents=True)
    (place / "cmdline").write_bytes("\0".join(words).encode() + b"\0")
    (place / "cwd").symlink_to(home)


def test_zookeepers_of_this_installation_are_found_by_their_settings(tmp_path):
    root, home = tmp_path / "proc", tmp_path / "home"
    home.mkdir()
    for port in ("2181", "2182", "2183", "0", "x"):
        (home / f"zk-{port}.properties").write_text(f"clientPort={port}\n")
    java = ("java", "-cp", JARS, MAIN)
    process(root, 1, home, *java, "zk-2181.properties")
    process(root, 2, home, "sh", "bin/zookeeper-server-start.sh", str(home / "zk-2182.properties"))
    process(root, 3, home, "java", "-cp", "/other/*", MAIN, "zk-2183.properties")
    process(root, 4, home, *java, "zk-0.properties")
    process(root, 5, home, *java, "zk-x.properties")
    process(root, 6, home, *java, "missing.properties")
    process(root, 7, home, "vim", "bin/zookeeper-server-start.sh")
    process(root, 8, home, *java, "zk-2181.properties")
    process(root, 9, home, *java)

    found = running_zookeepers(JARS, str(root))

    assert sorted(found) == ["localhost:2181", "localhost:2182"]
