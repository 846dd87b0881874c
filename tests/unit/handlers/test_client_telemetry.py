"""Clients that are asked for their metrics, and push them (KIP-714)."""

from __future__ import annotations

from typing import Any

import pytest
from support.network.network_process import NetworkProcess
from support.surfaces.otlp import (
    distribution,
    exponential,
    exponential_histogram,
    gauge,
    histogram,
    metrics_data,
    number,
    total,
)

from kbroker.config.client_metrics_config import validate_subscription
from kbroker.errors import ConfigError, ErrorCode, WireError
from kbroker.handlers.support.client_telemetry import (
    CLIENTS_MAX,
    NO_ID,
    SERIES_OF_CLIENT_MAX,
    ClientTelemetry,
    label_name,
    series_name,
)
from kbroker.protocol.messages.get_telemetry_subscriptions import GetTelemetrySubscriptionsRequest
from kbroker.protocol.messages.push_telemetry import PushTelemetryRequest
from kbroker.protocol.otlp import BOUNDS_MAX, Histogram, HistogramPoint, Point, Pushed
from kbroker.record.compression import compress

pytestmark = pytest.mark.unit

ME = {"client_id": "billing", "client_software_name": "kcat"}
GZIP, ZSTD = 1, 4


@pytest.fixture
def subscriptions() -> dict[str, dict[str, str]]:
    return {
        "rates": {"metrics": "org.apache.kafka.producer.", "interval.ms": "1000"},
        "others": {"metrics": "*", "interval.ms": "200", "match": "client_id=audit.*"},
        "empty": {"interval.ms": "100"},
    }


@pytest.fixture
def state(subscriptions: dict[str, dict[str, str]]) -> ClientTelemetry:
    return ClientTelemetry(subscriptions)


def point(name: str, value: float, *, delta: bool = False, **attributes: str) -> Point:
    return Point(name, tuple(attributes.items()), value, delta, delta)


def test_client_is_asked_for_what_all_matching_subscriptions_want(state: ClientTelemetry) -> None:
    instance, mine = state.subscribe(NO_ID, ME, 0)
    other, others = state.subscribe(NO_ID, {"client_id": "audit-7"}, 0)

    assert (mine.prefixes, mine.interval_ms) == (("org.apache.kafka.producer.",), 1000)
    assert (others.prefixes, others.interval_ms) == (("",), 200)
    assert len(instance) == 16
    assert instance not in (NO_ID, other)
    assert state.subscription(instance, ME) == mine


def test_client_that_nobody_asks_gets_no_metrics() -> None:
    _, found = ClientTelemetry({}).subscribe(NO_ID, ME, 0)

    assert (found.prefixes, found.interval_ms) == ((), 300_000)


def test_other_process_gives_the_same_number(
    state: ClientTelemetry, subscriptions: dict[str, dict[str, str]]
) -> None:
    """A client may push over another connection than it has asked on."""
    instance, found = state.subscribe(NO_ID, ME, 0)
    other = ClientTelemetry(dict(reversed(subscriptions.items())))

    other.begin_push(instance, ME, found.number, False, 5)


def test_changed_subscription_is_told_with_the_next_push(
    state: ClientTelemetry, subscriptions: dict[str, dict[str, str]]
) -> None:
    instance, found = state.subscribe(NO_ID, ME, 0)
    subscriptions["rates"]["interval.ms"] = "300"

    with pytest.raises(WireError) as raised:
        state.begin_push(instance, ME, found.number, False, 1000)

    assert raised.value.code == ErrorCode.UNKNOWN_SUBSCRIPTION_ID
    _, changed = state.subscribe(instance, ME, 1001)  # at once
    assert changed.interval_ms == 300
    assert changed.number != found.number


def test_client_that_asks_or_pushes_too_often_is_throttled(state: ClientTelemetry) -> None:
    instance, found = state.subscribe(NO_ID, ME, 0)
    state.begin_push(instance, ME, found.number, False, 10)

    for early in (
        lambda: state.begin_push(instance, ME, found.number, False, 500),
        lambda: state.subscribe(instance, ME, 500),
    ):
        with pytest.raises(WireError) as raised:
            early()
        assert raised.value.code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    state.begin_push(instance, ME, found.number, False, 960)
    state.begin_push(instance, ME, found.number, True, 961)  # the last one may come at any time
    with pytest.raises(WireError) as raised:
        state.begin_push(instance, ME, found.number, False, 5000)
    assert raised.value.code == ErrorCode.INVALID_REQUEST


def figures(state: ClientTelemetry) -> dict[tuple[str, str], float]:
    """By name and the value of the label topic."""
    return {
        (one.name, dict(map(tuple, one.labels)).get("topic", "")): one.value  # type: ignore[arg-type, misc]
        for one in state.figures().series
    }


def test_pushed_numbers_are_kept_and_deltas_added(state: ClientTelemetry) -> None:
    instance, found = state.subscribe(NO_ID, ME, 0)
    rate, count = "org.apache.kafka.producer.rate", "org.apache.kafka.producer.count"
    state.take(instance, ME, Pushed({"group_id": "g"}, [
        point(rate, 1.5, topic="a"), point(rate, 2.5, topic="b"), point(count, 3, delta=True),
        point("org.apache.kafka.consumer.rate", 9),
    ], [], 0), found.prefixes)  # fmt: skip

    state.take(
        instance, ME, Pushed({}, [point(rate, 4, topic="a"), point(count, 2, delta=True)], [], 1),
        found.prefixes,
    )  # fmt: skip

    assert figures(state) == {
        ("kbroker_client_producer_rate", "a"): 4,  # b is gone
        ("kbroker_client_producer_count", ""): 5,
    }
    told = state.figures()
    labels = dict(map(tuple, told.series[0].labels))  # type: ignore[arg-type]
    assert labels["client_id"] == "billing"
    assert labels["client_software_name"] == "kcat"
    assert told.left_out == 1


def histogram_of(
    state: ClientTelemetry, *values: Histogram, delta: bool = False, **attributes: str
) -> list[Any]:
    """What is told after these were pushed, one after the other."""
    for value in values:
        pushed = HistogramPoint("h", tuple(attributes.items()), value, delta)
        state.take(bytes(15) + b"x", ME, Pushed({}, [], [pushed], 0), [""])
    return [(*one[2:], dict(map(tuple, one.labels))) for one in state.figures().histograms]  # type: ignore[arg-type]


def test_histogram_replaces_the_one_before_or_adds_to_it(
    subscriptions: dict[str, dict[str, str]],
) -> None:
    one, two = Histogram((1.0, 2.0), (3, 0, 1), 9.5), Histogram((1.0, 2.0), (4, 1, 1), 12.0)

    ((*latest, _),) = histogram_of(ClientTelemetry(subscriptions), one, two)
    ((*added, labels),) = histogram_of(
        ClientTelemetry(subscriptions), one, two, delta=True, topic="t", le="9"
    )

    assert latest == [[1.0, 2.0], [4, 1, 1], 12.0]
    assert added == [[1.0, 2.0], [7, 1, 2], 21.5]
    assert (labels["topic"], labels["client_id"]) == ("t", "billing")
    assert "le" not in labels


@pytest.mark.parametrize(
    ("one", "two", "added"),
    [
        (((1.0, 2.0), (3, 5, 1)), ((1.0,), (4, 1)), ([1.0], [7, 7])),
        # An empty bucket is empty up to any bound.
        (((1.0, 2.0), (0, 5, 0)), ((4.0, 8.0), (0, 6, 0)), ([1.0, 2.0, 4.0, 8.0], [0, 5, 0, 6, 0])),
        (((1.0, 4.0), (0, 0, 2)), ((2.0,), (1, 1)), ([2.0], [1, 3])),
        (((1.0,), (1, 1)), ((2.0,), (1, 1)), ([], [4])),
    ],
)
def test_histogram_with_other_bounds_is_added_by_the_bounds_that_both_know(
    state: ClientTelemetry, one: Any, two: Any, added: Any
) -> None:
    """Buckets of exponential histograms come and go; what is counted must never decrease."""
    pushed = [Histogram(*one, 9.5), Histogram(*two, None)]

    ((*found, _),) = histogram_of(state, *pushed, delta=True)

    assert found == [*added, None]


def test_bounds_of_added_histograms_are_bounded(state: ClientTelemetry) -> None:
    def wide(begin: int) -> Histogram:
        bounds = tuple(float(begin + at) for at in range(BOUNDS_MAX))
        return Histogram(bounds, (0, *[1] * (BOUNDS_MAX - 1), 0), 1.0)

    (((bounds, counts, _), _),) = (
        (told[:3], told[3]) for told in histogram_of(state, wide(0), wide(BOUNDS_MAX), delta=True)
    )

    assert len(bounds) <= BOUNDS_MAX
    assert (bounds[0], bounds[-1]) == (0.0, 2.0 * BOUNDS_MAX - 1)
    assert sum(counts) == 2 * (BOUNDS_MAX - 1)


def test_buckets_of_histograms_count_as_series(state: ClientTelemetry) -> None:
    instance, _ = state.subscribe(NO_ID, ME, 0)
    wide = Histogram(tuple(map(float, range(97))), (1,) * 98, 1.0)
    histograms = [HistogramPoint(f"h{n}", (), wide, False) for n in range(6)]

    state.take(instance, ME, Pushed({}, [point("m", 1)], histograms, 0), [""])
    told = state.figures()

    assert [one.name for one in told.histograms] == [f"kbroker_client_h{n}" for n in range(4)]
    assert told.left_out == 2
    state.tick(3001)
    assert state.figures().histograms == []
    histogram_of(state, *[Histogram((), (1,), None)] * 2)
    assert len(state.figures().histograms) == 1


def test_what_is_kept_of_clients_is_bounded(state: ClientTelemetry) -> None:
    instance, _ = state.subscribe(NO_ID, ME, 0)
    points = [point("m", 1, topic=str(n)) for n in range(SERIES_OF_CLIENT_MAX + 7)]
    state.take(instance, ME, Pushed({}, points, [], 0), [""])
    assert len(state.figures().series) == SERIES_OF_CLIENT_MAX
    assert state.figures().left_out == 7

    for _ in range(CLIENTS_MAX):
        state.subscribe(NO_ID, ME, 0)

    assert state.figures().series == []  # the oldest client was forgotten


def test_clients_that_are_silent_are_forgotten(state: ClientTelemetry) -> None:
    instance, found = state.subscribe(NO_ID, ME, 0)
    state.begin_push(instance, ME, found.number, False, 0)
    state.take(instance, ME, Pushed({}, [point("m", 1)], [], 0), [""])

    state.tick(3000)
    assert figures(state)
    state.tick(3001)
    assert figures(state) == {}


def test_names_are_those_that_prometheus_takes() -> None:
    assert series_name("org.apache.kafka.producer.record.send.rate") == (
        "kbroker_client_producer_record_send_rate"
    )
    assert series_name('x"}\n1') == "kbroker_client_x___1"
    assert label_name("node.id") == "node_id"
    assert label_name("__name__") == "l___name__"
    assert label_name("1st") == "l_1st"


@pytest.mark.parametrize(
    "configs",
    [
        {"interval.ms": "99"},
        {"interval.ms": "3600001"},
        {"match": "client=x"},
        {"match": "client_id"},
        {"match": "client_id=("},
        {"match": "client_id=" + "x" * 2000},
        {"frequency": "1"},
    ],
)
def test_subscription_that_makes_no_sense_is_rejected(configs: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        validate_subscription(configs)


# -- over the wire


@pytest.fixture
def process() -> NetworkProcess:
    process = NetworkProcess()
    process.image.client_metrics["all"] = {"metrics": "*", "interval.ms": "100"}
    return process


def push(process: NetworkProcess, data: bytes, compression: int = 0, **fields: Any) -> Any:
    asked = process.ask(GetTelemetrySubscriptionsRequest(client_instance_id=NO_ID), 0)
    assert asked.requested_metrics == [""]
    assert asked.accepted_compression_types == [4, 3, 1, 2]
    request = PushTelemetryRequest(
        client_instance_id=asked.client_instance_id,
        subscription_id=asked.subscription_id,
        compression_type=compression,
        metrics=data,
    )
    for name, value in fields.items():
        setattr(request, name, value)
    return process.ask(request, 0).error_code


DATA = metrics_data(
    [
        gauge("a", number(1.5, {})),
        total("b", number(2, {}), is_delta=True),
        histogram("h", distribution([1.0], [1, 2], 5.5, {}), is_delta=False),
        exponential_histogram("e", exponential(0, (0, [3])), is_delta=False),
    ]
)


@pytest.mark.parametrize("codec", range(5))
def test_push_is_taken_in_every_compression(process: NetworkProcess, codec: int) -> None:
    data = compress(codec, DATA) if codec else DATA

    assert push(process, data, codec) == 0

    told = process.telemetry.figures()
    assert sorted(one.name for one in told.series) == ["kbroker_client_a", "kbroker_client_b"]
    assert [one.counts for one in told.histograms] == [[1, 2], [0, 3, 0]]


def test_bad_pushes_get_their_errors(process: NetworkProcess) -> None:
    limit = process.config["telemetry.max.bytes"]
    bomb = compress(ZSTD, bytes(9 * limit))

    assert push(process, b"\xff" * 20) == ErrorCode.INVALID_RECORD
    assert push(process, b"no gzip", GZIP) == ErrorCode.INVALID_RECORD
    assert push(process, bomb, ZSTD) == ErrorCode.INVALID_RECORD
    assert push(process, DATA, 5) == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert push(process, bytes(limit + 1)) == ErrorCode.TELEMETRY_TOO_LARGE
    assert push(process, DATA, client_instance_id=NO_ID) == ErrorCode.INVALID_REQUEST
    assert push(process, DATA, subscription_id=1) == ErrorCode.UNKNOWN_SUBSCRIPTION_ID
    told = process.telemetry.figures()
    assert (told.series, told.histograms, told.left_out) == ([], [], 0)
