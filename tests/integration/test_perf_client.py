"""The comparison of clients for Python at toy size, against a real broker."""

from __future__ import annotations

import pytest

pytest.importorskip("confluent_kafka")

from support.clients import client_topics as topics

from kbroker.client.connections.cluster import Cluster
from kbroker.testing import Broker
from perf import client

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def broker():
    with Broker({"num.partitions": client.PARTITIONS}) as running:
        yield running


@pytest.mark.parametrize("library", client.CELLS[0].parameters["records"])
def test_each_library_sends_all_records(broker, library):
    topic = client.new_topic(broker.bootstrap)
    options = client.parse_arguments(
        [
            *("--one", library, "--bootstrap", broker.bootstrap, "--topic", topic),
            *("--records", "2000", "--value-bytes", "50"),
        ]
    )

    found = client.run_here(options)

    assert found.records == 2000
    assert found.seconds > 0
    with Cluster(broker.bootstrap) as cluster:
        warm = 4 * client.PARTITIONS
        assert sum(end for _, end in topics.ends(cluster, topic).values()) == 2000 + warm


@pytest.mark.slow
def test_each_library_reads_all_records(broker):
    options = client.parse_arguments(["--quick", "--cells", "consume100"])
    options.runs = 1

    report = client.compare(options, broker.bootstrap, lambda line: None)

    assert set(report.cells["consume100"]["results"]) == set(client.CELLS[2].parameters["records"])
    assert all(not one["failures"] for one in report.cells["consume100"]["results"].values())


def test_comparison_tells_rates_and_ratios(broker):
    options = client.parse_arguments(
        ["--quick", "--cells", "produce100", "--libraries", "kbroker send,confluent-kafka"]
    )
    options.runs = 1
    said: list[str] = []

    cell = client.compare(options, broker.bootstrap, said.append).cells["produce100"]

    assert set(cell["results"]) == {"kbroker send", "confluent-kafka"}
    (condition,) = cell["conditions"]
    assert condition["ratio"] == pytest.approx(condition["kbroker"] / condition["other"])
    assert condition["met"] == (condition["ratio"] >= 0.7)
    assert any("aim 1.2x" in line for line in said)


def test_time_of_topic_list_is_judged(broker, monkeypatch):
    monkeypatch.setattr(client, "TOPIC_LISTS", 1)
    options = client.parse_arguments(["--cells", client.TOPIC_LIST.name])

    report = client.compare(options, broker.bootstrap, lambda line: None)

    cell = report.cells[client.TOPIC_LIST.name]
    (condition,) = cell["conditions"]
    assert cell["results"]["kbroker"]["runs"] == [{"wall_ms": condition["kbroker"]}]
    assert condition["met"] == (condition["kbroker"] <= 150)
