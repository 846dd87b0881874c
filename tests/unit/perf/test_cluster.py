"""The comparison of clusters: its cells, options and topics."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from perf import cluster, cluster_cells, clusters
from perf.cluster_cells import CELLS

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    "arguments", [["--cells", "nope"], ["--clusters", "redis"], ["--override", "no-value"]]
)
def test_unknown_names_are_refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        cluster.parse_arguments(arguments)
    assert raised.value.code == 2


def test_every_condition_can_be_judged_and_cells_have_names_of_their_own() -> None:
    assert len({cell.name for cell in CELLS}) == len(CELLS)
    assert any("x" in bar.rule for cell in CELLS for bar in cell.bars)
    assert all(cell.bars for cell in CELLS)
    assert {"all16k", "all160k", "all1", "latency", "catchup", "failover"} <= {
        cell.name for cell in CELLS
    }


def test_size_of_the_catch_up_can_be_chosen() -> None:
    options = cluster.parse_arguments(["--catch-up-gib", "2.5"])
    assert cluster.chosen_size(options).catch_up_gib == 2.5
    assert cluster.chosen_size(cluster.parse_arguments(["--quick"])) == cluster_cells.QUICK


@pytest.mark.parametrize("partitions", [1, 100, 2500, 2501, 10_000])
def test_topics_have_no_more_partitions_than_kafka_creates_at_once(
    partitions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    deleted: list[str] = []

    @contextmanager
    def one_topic(
        _cluster: object, count: int, prefix: str
    ) -> Iterator[tuple[str, dict[int, object]]]:
        made.append(count)
        name = f"{prefix}-{len(made)}"
        yield name, {}
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
