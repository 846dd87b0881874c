"""A client next to a hundred greedy ones, and next to the largest requests, of every API.

Whether work is cut up is tested without a broker and without a clock, in
``tests/unit/ipc/test_slices.py`` and ``tests/unit/handlers/test_handlers_in_slices.py``. Here it is
what comes of it: waits are counted in time that the broker's processes worked.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fault.crowd import CONNECTIONS, LARGE_ENTRIES, Outcome, apis, beside, crowded_broker
from fault.crowd_requests import flood_frame, large_frames

from kbroker.protocol.api import ApiKey
from kbroker.testing import Broker

pytestmark = [pytest.mark.fault, pytest.mark.slow]

SECONDS = 3.0
CROWD_MS_MAX, LARGE_MS_MAX, GROWTH_MIB_MAX = 50, 100, 256


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with crowded_broker() as started:
        yield started


def check(broker: Broker, pids: dict[str, int], found: Outcome, most_ms: float) -> None:
    assert broker.pids == pids, broker.log_text[-2000:]
    assert found.busy_p99 <= most_ms, found
    assert max(found.growth.values(), default=0) <= GROWTH_MIB_MAX, found


@pytest.mark.parametrize(("key", "version"), apis(""), ids=lambda value: str(value))
def test_client_waits_little_beside_a_crowd(broker: Broker, key: int, version: int) -> None:
    pids = broker.pids
    check(
        broker, pids, beside(broker, flood_frame(key, version), CONNECTIONS, SECONDS), CROWD_MS_MAX
    )


@pytest.mark.parametrize(
    ("key", "version"),
    [entry for entry in apis("") if entry[0] not in (ApiKey.PRODUCE, ApiKey.FETCH)],
    ids=lambda value: str(value),
)
def test_client_waits_little_beside_the_largest_requests(
    broker: Broker, key: int, version: int
) -> None:
    for frame in large_frames(key, version, LARGE_ENTRIES).values():
        pids = broker.pids
        check(broker, pids, beside(broker, frame, 1, SECONDS), LARGE_MS_MAX)
