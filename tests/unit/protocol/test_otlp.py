"""OpenTelemetry's metrics as clients push them, and bytes that are none."""

from __future__ import annotations

import random
import struct
from collections.abc import Generator
from math import isfinite
from typing import Any

import pytest
from support.surfaces.otlp import (
    attribute,
    distribution,
    exponential,
    exponential_histogram,
    gauge,
    histogram,
    message,
    metrics_data,
    number,
    summary,
    total,
    varint,
)

from kbroker.protocol.otlp import (
    ATTRIBUTES_MAX,
    BOUNDS_MAX,
    FIELDS_MAX,
    POINTS_MAX,
    TEXT_BYTES_MAX,
    Histogram,
    HistogramPoint,
    Point,
    Pushed,
    read_metrics,
)
from kbroker.protocol.primitives import DecodeError

pytestmark = pytest.mark.unit


def read(data: bytes) -> Pushed:
    steps: Generator[None, None, Any] = read_metrics(data)
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            found: Pushed = stop.value
            return found


def test_gauges_and_sums_are_read_with_their_attributes() -> None:
    data = metrics_data(
        [
            gauge("a.rate", number(1.5, {"topic": "orders"})),
            total("a.total", number(3, {}), is_delta=True),
            total("b.total", number(-2, {"n": "x"}), is_delta=False, is_monotonic=False),
        ],
        {"client_rack": "r1"},
    )

    found = read(data)

    assert found.resource == {"client_rack": "r1"}
    assert found.points == [
        Point("a.rate", (("topic", "orders"),), 1.5, False, False),
        Point("a.total", (), 3, True, True),
        Point("b.total", (("n", "x"),), -2, False, False),
    ]
    assert found.left_out == 0


def test_other_kinds_and_numbers_that_are_none_are_left_out() -> None:
    data = metrics_data(
        [
            summary("s"),
            gauge("nan", number(float("nan"), {})),
            gauge("inf", number(float("inf"), {})),
            gauge("", number(1, {})),
            gauge("empty", b""),
        ]
    )

    assert read(data) == Pushed({}, [], [], 5)


@pytest.mark.parametrize("packed", [True, False])
def test_histograms_are_read_with_bounds_and_counts(packed: bool) -> None:
    data = metrics_data(
        [
            histogram(
                "h",
                distribution([0.5, 10.0], [2, 0, 1], 33.25, {"topic": "t"}, packed=packed),
                distribution([], [7], None, {}, packed=packed),
                is_delta=True,
            )
        ]
    )

    assert read(data).histograms == [
        HistogramPoint("h", (("topic", "t"),), Histogram((0.5, 10.0), (2, 0, 1), 33.25), True),
        HistogramPoint("h", (), Histogram((), (7,), None), True),
    ]


def test_histogram_without_buckets_has_its_count() -> None:
    only_count = struct.pack("<BQ", 0x21, 9)

    (point,) = read(metrics_data([histogram("h", only_count, is_delta=False)])).histograms

    assert point.value == Histogram((), (9,), None)


@pytest.mark.parametrize(
    ("bounds", "counts"),
    [
        ([1.0], [1]),
        ([1.0], [1, 2, 3]),
        ([2.0, 1.0], [1, 2, 3]),
        ([1.0, 1.0], [1, 2, 3]),
        ([float("nan")], [1, 2]),
        ([float("inf")], [1, 2]),
        (list(map(float, range(BOUNDS_MAX + 1))), [1] * (BOUNDS_MAX + 2)),
    ],
)
@pytest.mark.parametrize("packed", [True, False])
def test_histogram_that_makes_no_sense_is_left_out(
    bounds: list[float], counts: list[int], packed: bool
) -> None:
    bad = distribution(bounds, counts, 1.0, {}, packed=packed)
    good = distribution([1.0], [1, 2], float("nan"), {})

    found = read(metrics_data([histogram("h", bad, good, is_delta=False)]))

    assert [point.value for point in found.histograms] == [Histogram((1.0,), (1, 2), None)]
    assert found.left_out == 1


def one_exponential(*args: Any, **how: Any) -> Histogram | None:
    """What becomes of one; None if it is left out."""
    point = exponential(*args, **how)
    found = read(metrics_data([exponential_histogram("e", point, is_delta=True)]))
    assert found.left_out == (not found.histograms)
    return found.histograms[0].value if found.histograms else None


@pytest.mark.parametrize("packed", [True, False])
def test_exponential_histogram_has_the_bounds_of_its_buckets(packed: bool) -> None:
    """Bucket i is of what is above base**i and up to base**(i + 1), base being 2**(2**-scale)."""
    point = exponential(
        -1, (1, [0, 5, 0, 7]), (0, [3, 2]), zeros=4, threshold=0.25, total=9.5,
        attributes={"topic": "t"}, packed=packed,
    )  # fmt: skip

    (found,) = read(metrics_data([exponential_histogram("e", point, is_delta=True)])).histograms

    assert (found.name, found.attributes, found.is_delta) == ("e", (("topic", "t"),), True)
    assert found.value == Histogram(
        (-16.0, -4.0, -1.0, 0.25, 16.0, 64.0, 256.0, 1024.0), (0, 2, 3, 4, 0, 5, 0, 7, 0), 9.5
    )


def test_fine_exponential_histogram_gets_four_buckets_for_a_doubling() -> None:
    """Buckets become one, two by two, without moving a value."""
    fine = one_exponential(5, (-32, [1] * 64))
    coarse = one_exponential(2, (-4, [8] * 8))

    assert fine == coarse
    assert fine is not None
    assert (fine.bounds[::4], fine.counts) == ((0.5, 1.0, 2.0), (0, *[8] * 8, 0))


def test_wide_exponential_histogram_becomes_coarser_until_its_bounds_are_few() -> None:
    found = one_exponential(3, (-8000, [1, *[0] * 15998, 2]), (-8000, [3, *[0] * 15998, 4]))

    assert found is not None
    assert len(found.bounds) <= BOUNDS_MAX
    assert list(found.bounds) == sorted(set(found.bounds))
    assert [count for count in found.counts if count] == [4, 3, 1, 2]


def test_exponential_histogram_of_zeros_alone_or_of_nothing() -> None:
    assert one_exponential(0, zeros=3) == Histogram((0.0,), (3, 0), None)
    assert one_exponential(0) == Histogram((0.0,), (0, 0), None)


def test_exponential_histogram_beyond_what_numbers_can_tell_stays_in_order() -> None:
    for offset in (2**31 - 200, -(2**31)):
        found = one_exponential(0, (offset, [1] * 150), (offset, [1] * 150), zeros=1, threshold=9)

        assert found is not None
        assert list(found.bounds) == sorted(set(found.bounds))
        assert all(map(isfinite, found.bounds))
        assert sum(found.counts) == 301


@pytest.mark.parametrize(
    ("scale", "threshold"),
    [(21, 0.0), (-11, 0.0), (2**31 - 1, 0.0), (0, -1.0), (0, float("nan")), (0, float("inf"))],
)
def test_exponential_histogram_that_makes_no_sense_is_left_out(
    scale: int, threshold: float
) -> None:
    assert one_exponential(scale, (0, [1]), threshold=threshold) is None


def test_buckets_are_bounded_as_fields_are() -> None:
    with pytest.raises(DecodeError, match="more than"):
        one_exponential(0, (0, [0] * (FIELDS_MAX + 1)))


def test_what_is_kept_of_a_push_is_bounded() -> None:
    many = metrics_data([gauge("m" * 1000, number(1, {})) for _ in range(POINTS_MAX + 5)])
    labels = {f"k{n}": "v" * 1000 for n in range(ATTRIBUTES_MAX + 5)}

    found = read(many)
    [point] = read(metrics_data([gauge("a", number(1, labels))])).points

    assert (len(found.points), found.left_out) == (POINTS_MAX, 5)
    assert len(found.points[0].name) == TEXT_BYTES_MAX
    assert len(point.attributes) == ATTRIBUTES_MAX
    assert len(point.attributes[0][1]) == TEXT_BYTES_MAX


def test_fields_that_nobody_needs_are_bounded_too() -> None:
    """They would keep a network process busy for seconds."""
    junk = (varint(15 << 3) + b"\0") * (FIELDS_MAX + 1)

    for data in (junk, message(1, junk), metrics_data([gauge("a", junk)])):
        with pytest.raises(DecodeError, match="more than"):
            read(data)


@pytest.mark.parametrize(
    "data",
    [
        b"\x0a",  # a length is missing
        b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",  # a huge length
        b"\x0a\x05abc",  # more than there is
        b"\xff" * 11,  # a number that does not end
        b"\x00\x00",  # field 0
        b"\x0b\x00",  # a group
        b"\x09\x00",  # a cut fixed64
    ],
)
def test_damaged_bytes_are_rejected(data: bytes) -> None:
    with pytest.raises(DecodeError):
        read(data)


def test_any_change_of_a_push_is_read_or_rejected() -> None:
    data = metrics_data(
        [
            gauge("a", number(1.5, {"topic": "t"})),
            total("b", number(7, {}), is_delta=True),
            histogram("h", distribution([1.0], [2, 3], 4.0, {"n": "x"}), is_delta=False),
            exponential_histogram("e", exponential(3, (-9, [2, 3]), zeros=1), is_delta=True),
        ],
        {"group_id": "g"},
    )
    random_ = random.Random(1)
    for at in range(len(data)):
        for value in {0, 255, random_.randrange(256), data[at] ^ 0x80}:
            changed = data[:at] + bytes([value]) + data[at + 1 :]
            for cut in (changed, changed[:-1], data[:at]):
                try:
                    found = read(cut)
                except DecodeError:
                    continue
                assert all(isinstance(point.value, float | int) for point in found.points)
                for _, _, (bounds, counts, _), _ in found.histograms:
                    assert len(counts) == len(bounds) + 1 <= BOUNDS_MAX + 1
                    assert list(bounds) == sorted(set(bounds))


def test_integers_keep_their_sign() -> None:
    point = message(6, b"")  # not a number
    data = metrics_data([gauge("a", struct.pack("<Bq", 0x31, -(2**40)) + point)])

    assert [p.value for p in read(data).points] == [-(2**40)]
    assert attribute("a", "b")
