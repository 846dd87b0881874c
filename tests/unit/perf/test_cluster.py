"""The comparison of clusters: its references, and when a condition is met."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from perf import cluster, cluster_cells, clusters
from perf.cluster_cells import CELLS, Condition

pytestmark = pytest.mark.unit

RATE = Condition("rate", "requests/s", 1.5, 2.0, at_least=True)
CPU = Condition("cpu", "CPU us/request", 0.5)
LIMIT = Condition("stop", "stop, s", limit=3.0)


def runs(**figures: list[float]) -> dict[str, Any]:
    count = len(next(iter(figures.values())))
    return {
        "runs": [{name: values[n] for name, values in figures.items()} for n in range(count)],
        "failures": [],
    }


def results(kbroker: float, kafka: float, old_kafka: float, figure: str) -> dict[str, Any]:
    return {
        "kbroker": runs(**{figure: [kbroker]}),
        "kafka-3.9.1": runs(**{figure: [kafka]}),
        "kafka-2.7.2": runs(**{figure: [old_kafka]}),
    }


def test_rate_is_compared_with_the_faster_kafka() -> None:
    judged = cluster.judge(RATE, results(290, 100, 200, "rate"))

    assert (judged["kafka"], judged["ratio"], judged["met"]) == (200, 1.45, False)


def test_cost_is_compared_with_the_cheaper_kafka() -> None:
    judged = cluster.judge(CPU, results(50, 100, 200, "cpu"))

    assert (judged["kafka"], judged["met"]) == (100, True)


def test_limit_needs_no_kafka() -> None:
    assert cluster.judge(LIMIT, {"kbroker": runs(stop=[2.0])})["met"] is True
    assert cluster.judge(LIMIT, {"kbroker": runs(stop=[3.5])})["met"] is False


def test_ratio_without_a_kafka_is_not_judged() -> None:
    assert cluster.judge(RATE, {"kbroker": runs(rate=[1.0])})["met"] is None


def test_median_counts_and_a_failure_leaves_nothing_to_judge() -> None:
    found = runs(rate=[1.0, 9.0, 3.0])
    assert cluster.middle(found, "rate") == 3.0
    found["failures"].append("rejected")
    assert cluster.middle(found, "rate") is None


def test_failure_of_a_cell_becomes_its_text() -> None:
    def fail(*_: object) -> Any:
        raise TimeoutError("not within 3 s")

    cell = cluster_cells.ClusterCell("x", "x", fail, (), {})
    assert cluster.attempt(cell, object(), cluster_cells.QUICK) == (  # type: ignore[arg-type]
        None,
        "TimeoutError: not within 3 s",
    )


def test_rows_name_figures_conditions_and_failures() -> None:
    cell = cluster_cells.ClusterCell("x", "title", lambda *_: {}, (RATE,), {})
    found = results(300, 100, 150, "rate")
    found["kafka-2.7.2"]["failures"].append("rejected: 19")

    text = "\n".join(cluster.rows(cell, found))

    assert "3.00x" in text and ">= 1.5x, aim 2x" in text and "met" in text
    assert "kafka-2.7.2 FAILED: rejected: 19" in text


@pytest.mark.parametrize(
    "arguments", [["--cells", "nope"], ["--clusters", "redis"], ["--override", "no-value"]]
)
def test_unknown_names_are_refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        cluster.parse_arguments(arguments)
    assert raised.value.code == 2


def test_every_condition_can_be_judged_and_cells_have_names_of_their_own() -> None:
    assert len({cell.name for cell in CELLS}) == len(CELLS)
    judged = [condition for cell in CELLS for condition in cell.conditions]
    assert any(condition.ratio for condition in judged)
    assert {"all16k", "all160k", "all1", "latency", "catchup", "failover"} <= {
        cell.name for cell in CELLS
    }


def test_size_of_the_catch_up_can_be_chosen() -> None:
    options = cluster.parse_arguments(["--catch-up-gib", "2.5"])
    assert cluster.size_of(options).catch_up_gib == 2.5
    assert cluster.size_of(cluster.parse_arguments(["--quick"])) == cluster_cells.QUICK


@pytest.mark.parametrize("partitions", [1, 100, 2500, 2501, 10_000])
def test_topics_have_no_more_partitions_than_kafka_creates_at_once(
    partitions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    deleted: list[str] = []

    @contextmanager
    def one_topic(_cluster: object, count: int, prefix: str) -> Iterator[str]:
        made.append(count)
        name = f"{prefix}-{len(made)}"
        yield name
        deleted.append(name)

    monkeypatch.setattr(cluster_cells, "topic_of", one_topic)
    with cluster_cells.topics_of(object(), partitions, "many") as topics:  # type: ignore[arg-type]
        assert len(topics) == len(made)

    assert sum(made) == partitions and max(made) <= 3000
    assert sorted(deleted) == sorted(topics)


def test_overrides_reach_kbroker_and_all_clusters_ask_for_two_in_sync(tmp_path: Path) -> None:
    made = clusters.KbrokerCluster(tmp_path, {"num.io.threads": "2"})
    assert made.settings["num.io.threads"] == "2"
    assert made.settings["min.insync.replicas"] == "2"
    assert made.settings["default.replication.factor"] == "3"


def test_kraft_voter_keeps_its_metadata_when_it_loses_its_data(tmp_path: Path) -> None:
    class Stopped:
        home = tmp_path

    data = tmp_path / "data"
    for name in ("__cluster_metadata-0", "t-0", "t-1"):
        (data / name).mkdir(parents=True)
    for name in ("meta.properties", "recovery-point-offset-checkpoint"):
        (data / name).touch()

    clusters.KafkaCluster.lose_data(object(), Stopped())  # type: ignore[arg-type]

    assert {path.name for path in data.iterdir()} == {"__cluster_metadata-0", "meta.properties"}
