"""What the exporter keeps of thousands of topics, and what it needs for a moment."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from kbroker._ext.shared.partition_table import LEADER, ONLINE
from kbroker.cluster.image import ClusterImage
from kbroker.metrics.measured import CLIENT_IN, CLIENT_OUT, HOUR, OF_CLIENTS, TOPIC_IN
from kbroker.workers.exporter.history import CLIENTS_MAX, TOPICS_MAX, MetricHistory
from kbroker.workers.exporter.partitions import LocalReplica, PartitionFigures, Seen
from kbroker.workers.exporter.recorder import Recorder

pytestmark = pytest.mark.unit

TOPICS = 2_000
START_MS = 1_700_000_000_000


def figures_of(topics: int) -> PartitionFigures:
    image = ClusterImage()
    image.apply(
        {
            "snapshot": True,
            "version": 1,
            "topics": {
                f"topic-{number:05}": {
                    "id": f"{number:032x}",
                    "internal": False,
                    "config": {},
                    "partitions": [[0, 0, [0], [0], number, 1]],
                }
                for number in range(topics)
            },
        }
    )
    place = (1000, 0, 5)
    slot = {
        "state": ONLINE, "slot_incarnation": 1, "role": LEADER, "log_start_offset": 0,
        "log_end": place, "high_watermark": place, "last_stable": place,
    }  # fmt: skip
    table: Any = SimpleNamespace(read=lambda number: slot)
    row = tuple(range(1000, 1011))
    log_figures: Any = SimpleNamespace(get=lambda *of: row, lag=lambda *of: -1)
    return PartitionFigures(image, table, log_figures, lambda config: 1, ["/data"])


def bytes_of(make: Callable[[], Any]) -> tuple[int, int]:
    """Bytes that are kept, and the most meanwhile."""
    tracemalloc.start()
    try:
        kept = make()
        now, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    del kept
    return now, most


def test_replicas_and_topics_are_their_own_tags() -> None:
    """Of a partition in a topic, they took 700 bytes, also while nobody scrapes."""
    figures = figures_of(TOPICS)

    kept, _ = bytes_of(figures.replicas)

    assert kept / TOPICS < 150
    (first, *_) = figures.replicas()
    assert first.text == 'topic="topic-00000",partition="0"'
    assert first.pairs == (("topic", "topic-00000"), ("partition", "0"))
    assert not hasattr(first, "nothing")


def test_samples_of_topics_are_made_one_after_the_other() -> None:
    """Lists of all of them took a kilobyte a topic."""
    figures = figures_of(TOPICS)
    seen = list(figures.look())

    def read() -> int:
        return sum(1 for _, samples in figures.topic_samples(seen) for _ in samples)

    count = read()
    _, most = bytes_of(read)

    assert count == 9 * TOPICS
    assert most / TOPICS < 150


def test_samples_of_a_topic_are_the_sums_of_its_partitions() -> None:
    figures = figures_of(1)
    (one,) = figures.look()
    other = one._replace(figures=tuple(value + 1 for value in one.figures))

    found = {
        bean.name: [(tags.pairs, value) for tags, value in samples]
        for bean, samples in figures.topic_samples([one, other])
    }

    assert found["MessagesInPerSec"] == [((("topic", "topic-00000"),), 2001)]
    assert found["FailedFetchRequestsPerSec"] == [((("topic", "topic-00000"),), 2021)]
    assert one.figures == tuple(range(1000, 1011)), "what was seen is as it was"


def replica(topic: str, taken: int) -> Seen:
    image: Any = None
    row = (0, taken, 0, 0, 0, 0, 0, 0, 0, 0, 0)
    return Seen(LocalReplica(topic, 0, image), True, 0, 5, 5, 5, 100, 1, row)


def recorder(history: MetricHistory, clients: Iterable[tuple[str, int, int]] = ()) -> Recorder:
    times: Any = SimpleNamespace(histogram=lambda *of: bytes(8 * 64))
    return Recorder(history, [], times, list, dict, lambda: clients)


def test_idle_topics_have_curves_but_nothing_is_remembered_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    history = MetricHistory()
    recording = recorder(history)
    monkeypatch.setattr("kbroker.workers.exporter.recorder.summary", lambda *of: (0, 0, [0.0]))
    idle = [replica(f"idle-{number:03}", 0) for number in range(TOPICS_MAX + 50)]

    for step, taken in enumerate((1_000, 3_000)):
        seen = [*idle, replica("busy", taken)]
        recording.step(lambda seen=seen: seen, START_MS + step * 10_000)  # type: ignore[misc]

    assert recording._topics._before == {"busy": (3_000, 0)}
    found = history.of(HOUR, [TOPIC_IN])
    rates = {of: points[-1] for (_, of), points in found.series.items()}
    assert (len(rates), found.left_out) == (TOPICS_MAX, 51)
    assert rates.pop("busy") > 0  # type: ignore[operator]
    assert set(rates.values()) == {0.0}


def test_busiest_clients_have_curves_and_the_others_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A client has a row in each network process."""
    history = MetricHistory()
    clients = [("busy", 100, 0), ("busy", 50, 5), *((f"c{n}", 0, 7) for n in range(CLIENTS_MAX))]
    recording = recorder(history, clients)
    monkeypatch.setattr("kbroker.workers.exporter.recorder.summary", lambda *of: (0, 0, [0.0]))

    recording.step(list, START_MS)
    assert history.of(HOUR, OF_CLIENTS).series == {}
    clients[0] = ("busy", 400, 0)
    recording.step(list, START_MS + 10_000)

    found = history.of(HOUR, OF_CLIENTS)
    assert (len(found.series), found.left_out) == (2 * CLIENTS_MAX, 1)
    assert found.series[CLIENT_IN, "busy"][-1] > 0  # type: ignore[operator]
    assert found.series[CLIENT_OUT, "busy"][-1] == 0.0


def test_topic_that_begins_after_the_first_look_counts_from_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    history = MetricHistory()
    recording = recorder(history)
    monkeypatch.setattr("kbroker.workers.exporter.recorder.summary", lambda *of: (0, 0, [0.0]))

    recording.step(lambda: [replica("old", 5_000)], START_MS)
    assert history.of(HOUR, [TOPIC_IN]).series == {}
    recording.step(lambda: [replica("old", 5_000), replica("new", 100)], START_MS + 10_000)

    rates = {of: points[-1] for (_, of), points in history.of(HOUR, [TOPIC_IN]).series.items()}
    assert rates["old"] == 0.0
    assert rates["new"] > 0  # type: ignore[operator]
