"""What is told of times: requests, syncs, elections."""

from __future__ import annotations

import pytest

from kbroker._ext.shared.request_times import (
    ELECTION_ROW,
    TOTAL,
    RequestTimes,
    TimesView,
    region_size,
)
from kbroker.exposition.mbeans import attributes, object_name
from kbroker.workers.exporter.requests import ELECTIONS, RequestFigures

pytestmark = pytest.mark.unit

MS, S = 1_000_000, 1_000_000_000


def test_elections_have_a_count_times_and_the_rate_of_late() -> None:
    region = bytearray(region_size(1))
    times, now = RequestTimes(region, 0), [0]
    figures = RequestFigures(TimesView(region, 1), lambda: now[0], 2, 30_000)

    def told() -> dict[str, float]:
        ((tags, value),) = next(rows for bean, rows in figures.samples() if bean is ELECTIONS)
        assert object_name(ELECTIONS, tags) == (
            "kafka.controller:type=ControllerStats,name=LeaderElectionRateAndTimeMs"
        )
        return attributes(ELECTIONS, value)

    assert ELECTIONS not in [bean for bean, _ in figures.samples()]
    times.note(ELECTION_ROW, TOTAL, 8 * MS)
    assert told()["Count"] == 1 and told()["Mean"] == 8
    # Nobody knows yet since when.
    assert "OneMinuteRate" not in told()
    for now[0] in (30 * S, 60 * S):
        figures.tick()
    for _ in range(3):
        times.note(ELECTION_ROW, TOTAL, 2 * MS)
    now[0] = 90 * S

    assert told()["Count"] == 4 and told()["Mean"] == 2
    assert told()["OneMinuteRate"] == 3 / 60
