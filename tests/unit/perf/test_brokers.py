"""Configs and addresses of the two brokers; nothing is started here."""

import socket

import pytest

from perf import brokers, start
from perf.kafka_distribution import POM, VERSION, kafka_libraries
from perf.raw_client import parse_address

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:9092", ("127.0.0.1", 9092)),
        ("a:1, b:2", ("a", 1)),
        ("[::1]:9092", ("::1", 9092)),
    ],
)
def test_parse_address_takes_the_first_one(text, address):
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["", "host", "host:", "host:x"])
def test_parse_address_without_port_is_refused(text):
    with pytest.raises(ValueError, match="host:port"):
        parse_address(text)


def test_free_ports_are_different():
    assert len(set(brokers.free_ports(20))) == 20


def test_free_port_is_for_who_shares_it_alone():
    (port,) = brokers.free_ports(1)

    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", port))
    with socket.create_server(("127.0.0.1", port)):  # which sets SO_REUSEADDR
        pass


def test_kbroker_is_started_with_its_own_data_and_the_overrides(tmp_path):
    broker = brokers.KbrokerBroker(tmp_path, {"num.io.threads": "1"})

    command = broker.command()

    assert command[1:4] == ["-m", "kbroker.cli.start", "-c"]
    assert f"--override=listeners=PLAINTEXT://{broker.bootstrap}" in command
    assert f"--override=log.dirs={broker.home}/data" in command
    assert "--override=num.io.threads=1" in command


def test_kafka_is_one_process_with_one_gib_of_heap(tmp_path, monkeypatch):
    monkeypatch.setattr(brokers, "kafka_libraries", lambda **_: tmp_path / "libs")

    broker = brokers.KafkaBroker(tmp_path, {"num.partitions": "3"})

    assert broker.configuration["process.roles"] == "broker,controller"
    assert broker.configuration["num.partitions"] == "3"
    assert {"-Xms1G", "-Xmx1G", "kafka.Kafka"} <= set(broker.command())


def test_stop_of_a_broker_never_started_removes_its_directory(tmp_path):
    broker = brokers.KbrokerBroker(tmp_path)

    broker.stop()
    broker.stop()

    assert list(tmp_path.iterdir()) == []


def test_figures_of_a_broker_not_running_are_refused(tmp_path):
    with pytest.raises(RuntimeError, match="kbroker is not running"):
        brokers.KbrokerBroker(tmp_path).cpu_seconds()


def test_kafka_libraries_already_there_are_not_resolved_again(tmp_path):
    (tmp_path / "complete").touch()

    assert kafka_libraries(tmp_path) == tmp_path / "libs"
    assert f"<version>{VERSION}</version>" in POM


def test_kafka_libraries_without_maven_name_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "")

    with pytest.raises(RuntimeError, match="java and mvn"):
        kafka_libraries(tmp_path)


def test_start_prints_the_median_of_its_runs(monkeypatch, capsys, tmp_path):
    runs = iter([{"start_s": s, "pss_mib": 100 * s} for s in (0.5, 0.3, 0.4)])
    monkeypatch.setattr(start, "measure_start", lambda broker, idle: next(runs))

    assert start.main(["--runs", "3", "--place", str(tmp_path)]) == 0

    printed = capsys.readouterr().out
    assert "s from exec to the first acknowledged record" in printed
    assert "0.4 (0.3 to 0.5) s, 40 (30 to 50) MiB" in printed
