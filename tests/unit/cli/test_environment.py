"""Settings of a container, by the names of the image apache/kafka."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest

from kbroker.cli import environment
from kbroker.cli.arguments import Usage
from kbroker.cli.start import parse_arguments
from kbroker.cli.verbs import start
from kbroker.config.loader import load, parse_overrides
from kbroker.uuids import new_uuid, uuid_text

pytestmark = pytest.mark.unit

# What testcontainers for Java sets for apache/kafka.
TESTCONTAINERS = {
    "CLUSTER_ID": "4L6g3nShT-eMCtK--X86sw",
    "KAFKA_LISTENERS": "PLAINTEXT://127.0.0.1:9092,BROKER://127.0.0.1:9093,"
    "CONTROLLER://127.0.0.1:9094",
    "KAFKA_ADVERTISED_LISTENERS": "PLAINTEXT://localhost:32768,BROKER://a1b2c3:9093",
    "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "BROKER:PLAINTEXT,PLAINTEXT:PLAINTEXT,"
    "CONTROLLER:PLAINTEXT",
    "KAFKA_INTER_BROKER_LISTENER_NAME": "BROKER",
    "KAFKA_PROCESS_ROLES": "broker,controller",
    "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
    "KAFKA_CONTROLLER_QUORUM_VOTERS": "1@localhost:9094",
    "KAFKA_NODE_ID": "1",
    "KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR": "1",
    "KAFKA_OFFSETS_TOPIC_NUM_PARTITIONS": "1",
    "KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR": "1",
    "KAFKA_TRANSACTION_STATE_LOG_MIN_ISR": "1",
    "KAFKA_LOG_FLUSH_INTERVAL_MESSAGES": str(2**63 - 1),
    "KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
}


def found(**options: object) -> Namespace:
    given = {"environment": True, "config": None, "data": None, "override": []}
    return Namespace(**(given | options))


@pytest.fixture(autouse=True)
def nothing_mounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "server.properties"
    monkeypatch.setattr(environment, "MOUNTED_FILE", str(path))
    return path


@pytest.mark.parametrize(
    ("variable", "name"),
    [
        ("KAFKA_NUM_PARTITIONS", "num.partitions"),
        ("KAFKA_ADVERTISED_LISTENERS", "advertised.listeners"),
        ("KAFKA_LISTENER_NAME_BROKER_SSL_KEY", "listener.name.broker.ssl.key"),
        ("KAFKA_LISTENER_NAME_SASL__SSL_PLAIN_SASL", "listener.name.sasl_ssl.plain.sasl"),
        (
            "KAFKA_LISTENER_NAME_A_SCRAM___SHA___256_SASL_JAAS_CONFIG",
            "listener.name.a.scram-sha-256.sasl.jaas.config",
        ),
    ],
)
def test_variable_names_a_setting(variable: str, name: str) -> None:
    assert environment.settings_of({variable: "x"}) == {name: "x"}


def test_what_sets_up_java_or_is_empty_or_not_of_kafka_is_no_setting() -> None:
    names = ["HEAP_OPTS", "OPTS", "JMX_PORT", "LOG4J_ROOT_LOGLEVEL", "LOG4J_LOGGERS", "VERSION"]
    others = {f"KAFKA_{name}": "x" for name in names}

    assert environment.settings_of({**others, "KAFKA_BROKER_RACK": "", "PATH": "/bin"}) == {}


def test_without_variables_this_machine_reaches_port_9092() -> None:
    words = environment.arguments({}, "/data")

    assert "log.dirs=/data" in words
    assert "listeners=PLAINTEXT://:9092" in words
    assert "advertised.listeners=PLAINTEXT://localhost:9092" in words


def test_variables_come_before_defaults_and_overrides_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KAFKA_LOG_DIRS", "/elsewhere")
    monkeypatch.setenv("KAFKA_LISTENERS", "PLAINTEXT://:9999")
    monkeypatch.setenv("KAFKA_NUM_PARTITIONS", "3")

    words = start.arguments(found(data="/data", override=["num.partitions=5"]))

    overrides = parse_overrides(parse_arguments(words).override)
    assert overrides["log.dirs"] == "/elsewhere"
    assert overrides["listeners"] == "PLAINTEXT://:9999"
    assert "advertised.listeners" not in overrides
    assert overrides["num.partitions"] == "5"


def test_mounted_file_replaces_the_defaults(nothing_mounted: Path) -> None:
    nothing_mounted.write_text("listeners=PLAINTEXT://127.0.0.1:9092\n")

    words = environment.arguments({"KAFKA_NUM_PARTITIONS": "3"}, "/data")

    assert words == ["--config", str(nothing_mounted), "--override", "num.partitions=3"]


def test_file_and_environment_exclude_each_other() -> None:
    with pytest.raises(Usage, match="exclude each other"):
        start.arguments(found(config="server.properties"))


def test_settings_of_testcontainers_are_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in TESTCONTAINERS.items():
        monkeypatch.setenv(name, text)

    words = start.arguments(found(data=str(tmp_path / "data")))

    given = parse_arguments(words)
    config, _ = load(given.config, parse_overrides(given.override))
    assert config["broker.id"] == 1
    assert [listener.name for listener in config.listeners] == ["PLAINTEXT", "BROKER"]
    assert "[KafkaServer id=1] started" in given.ready_line
    assert any("Transitioning from RECOVERY to RUNNING" in line for line in given.ready_line)
    assert any("Kafka Server started" in line for line in given.ready_line)
    assert "cluster.id=4L6g3nShT-eMCtK--X86sw" in (tmp_path / "data/meta.properties").read_text()


def test_directory_of_another_cluster_stays_as_it_is(tmp_path: Path) -> None:
    words = environment.arguments({}, str(tmp_path / "data"))
    first, second = uuid_text(new_uuid()), uuid_text(new_uuid())
    environment.give_cluster_id({"CLUSTER_ID": first}, words)

    environment.give_cluster_id({"CLUSTER_ID": second}, words)

    assert f"cluster.id={first}" in (tmp_path / "data/meta.properties").read_text()


def test_cluster_id_that_is_none_is_refused(tmp_path: Path) -> None:
    words = environment.arguments({}, str(tmp_path / "data"))

    with pytest.raises(Usage, match="CLUSTER_ID=x is no cluster's id"):
        environment.give_cluster_id({"CLUSTER_ID": "x"}, words)
    assert not (tmp_path / "data").exists()


def test_what_the_broker_refuses_is_left_to_it(tmp_path: Path) -> None:
    """It says what is wrong in one line, and ends with 2."""
    (tmp_path / "data").write_text("a file")

    for settings in ({"KAFKA_LISTENERS": "x"}, {}):
        words = environment.arguments(settings, str(tmp_path / "data"))
        environment.give_cluster_id({"CLUSTER_ID": uuid_text(new_uuid())}, words)
