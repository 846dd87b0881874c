"""The client-driven benchmarks at toy size, against the mock cluster inside librdkafka."""

import json
import socket
from contextlib import contextmanager

import pytest

librdkafka = pytest.importorskip("perf.librdkafka")

from perf import consumer_perf, coordination, latency, producer_perf, saturate  # noqa: E402

pytestmark = pytest.mark.integration


@contextmanager
def mock_cluster():
    """A mock cluster with one broker: its bootstrap address, and a function that stops it."""
    library = librdkafka.load_library()
    for name in ("handle_mock_cluster", "mock_cluster_bootstraps"):
        function = getattr(library, f"rd_kafka_{name}")
        function.restype = librdkafka.POINTER if name == "handle_mock_cluster" else librdkafka.TEXT
        function.argtypes = [librdkafka.POINTER]
    with librdkafka.BatchProducer({"test.mock.num.brokers": "1"}, "unused", [b"x"]) as owner:
        mock = library.rd_kafka_handle_mock_cluster(owner._handle)
        yield library.rd_kafka_mock_cluster_bootstraps(mock).decode(), owner.close


@pytest.fixture
def cluster():
    with mock_cluster() as (bootstrap, _):
        yield bootstrap


def producer_options(cluster, *more):
    servers = ["--producer-props", f"bootstrap.servers={cluster}", "acks=1"]
    base = ["--topic", "t", "--num-records", "2500", "--record-size", "50"]
    return producer_perf.parse_arguments([*base, "--throughput", "-1", *more, *servers])


@pytest.mark.parametrize("client", ["librdkafka", "confluent"])
def test_records_produced_by_either_client_are_counted_and_read_back(cluster, client):
    options = producer_options(cluster, "--client", client)

    sent = producer_perf.run(options, lambda line: None)

    assert (sent["records"], sent["bytes"]) == (2500, 125_000)
    assert 0 < sent["p50_ms"] <= sent["max_ms"] * 1.02
    reader = ["--bootstrap-server", cluster, "--topic", "t", "--messages", "2500"]
    read = consumer_perf.run(consumer_perf.parse_arguments(reader))
    assert (read["records"], read["bytes"], read["complete"]) == (2500, 125_000, True)


def test_records_the_client_refuses_fail_the_run(cluster):
    options = producer_options(cluster)
    options.settings["message.max.bytes"] = "1000"
    options.record_size = 2000

    with pytest.raises(RuntimeError, match="size too large"):
        producer_perf.run(options, lambda line: None)


@pytest.mark.parametrize("client", ["librdkafka", "confluent"])
def test_metrics_when_asked_for_are_the_clients_statistics(cluster, client):
    options = producer_options(cluster, "--print-metrics", "--client", client)
    options.settings["statistics.interval.ms"] = "100"
    said = []

    producer_perf.run(options, said.append)

    assert json.loads(said[-1])["txmsgs"] == 2500


def test_settings_the_client_does_not_know_are_named(cluster):
    options = producer_options(cluster)
    options.settings["no.such.setting"] = "1"

    with pytest.raises(ValueError, match=r"no\.such\.setting"):
        producer_perf.run(options, lambda line: None)


@pytest.mark.parametrize("client", ["librdkafka", "confluent"])
def test_broker_that_goes_away_is_told_and_ends_the_run_in_its_time(client, monkeypatch, capfd):
    """There was a line for each connection attempt, for minutes, or until all records had
    failed.
    """
    monkeypatch.setattr(producer_perf, "REPORT_SECONDS", 0.2)
    warned = []
    with mock_cluster() as (bootstrap, end):
        options = producer_options(bootstrap, "--client", client)
        options.throughput, options.num_records = 500, 10_000
        options.settings["delivery.timeout.ms"] = "2000"

        with pytest.raises(RuntimeError, match=r"failed, .*timed out"):
            producer_perf.run(options, lambda line: end(), warned.append)

    assert warned[0].endswith(" wait, none longer than 2 s")
    assert any("Connection refused" in line for line in warned)
    assert "|FAIL|" not in capfd.readouterr().err


def test_messages_that_never_come_leave_the_run_incomplete(cluster, capsys):
    producer_perf.run(producer_options(cluster), lambda line: None)
    reader = ["--bootstrap-server", cluster, "--topic", "t", "--messages", "2501"]

    assert consumer_perf.main([*reader, "--timeout", "3000"]) == 0

    header, warning, line = capsys.readouterr().out.splitlines()
    assert header == consumer_perf.HEADER
    assert warning.startswith("WARNING: Exiting before consuming the expected number")
    assert line.split(", ")[4] == "2500"


@pytest.mark.parametrize(
    ("main", "arguments"),
    [
        (saturate.main, ["--bootstrap", "HERE"]),
        (latency.main, ["--bootstrap", "HERE"]),
        (coordination.main, ["commits", "--bootstrap", "HERE"]),
        (
            producer_perf.main,
            [
                *("--topic=t", "--num-records=1", "--record-size=1", "--throughput=-1"),
                *("--producer-props", "bootstrap.servers=HERE"),
            ],
        ),
        (consumer_perf.main, ["--bootstrap-server=HERE", "--topic=t", "--messages=1"]),
    ],
)
def test_tool_whose_broker_is_not_there_says_so_in_one_line(main, arguments, capfd):
    """Clients retry for minutes, with a line for each attempt, and end in a traceback."""
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # it does not listen
        here = f"127.0.0.1:{nobody.getsockname()[1]}"

        with pytest.raises(SystemExit) as ended:
            main([argument.replace("HERE", here) for argument in arguments])

    tool = main.__module__.removeprefix("perf.")
    assert str(ended.value).startswith(f"{tool}: no broker can be reached: {here}: ")
    assert capfd.readouterr() == ("", "")
