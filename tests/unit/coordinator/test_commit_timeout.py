"""Records that are not replicated in time: clients get a retriable error, the records stay."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.coordinators.coordinators_bench import Bench, ShortBench, commit

from kbroker.config.loader import BrokerConfig
from kbroker.errors import ErrorCode
from kbroker.ipc.rpc import Pending

pytestmark = pytest.mark.unit

TIMEOUT_MS = 5000


@pytest.fixture(params=[ShortBench, Bench])
def bench(request: Any, tmp_path: Path) -> Iterator[Bench]:
    """An io worker whose followers have stopped: nothing in the groups' log is committed."""
    made: Bench = request.param(tmp_path)
    made.config = BrokerConfig({"offsets.commit.timeout.ms": str(TIMEOUT_MS)})
    source = made.logs.log(0)
    assert source is not None
    source.set_high_watermark(0)
    # The fast path uses the machine's clock: start at its time.
    made.clock.advance(time.monotonic_ns() // 1_000_000 - made.clock.monotonic_ms())
    yield made


def pass_time(bench: Bench, delay_ms: int) -> None:
    bench.clock.advance(delay_ms)
    bench.end_turn()
    bench.end_turn()  # sends responses that followed the first


def codes(bench: Bench) -> dict[int, int]:
    return {response.token: response.error for response in bench.responses()}


def test_commit_that_is_not_replicated_in_time_is_to_be_tried_again(bench: Bench) -> None:
    token = bench.ask(commit(offset=5), 8)
    bench.end_turn()
    pass_time(bench, TIMEOUT_MS - 1000)
    assert codes(bench) == {}

    pass_time(bench, 2000)

    assert codes(bench) == {token: ErrorCode.COORDINATOR_NOT_AVAILABLE}
    pass_time(bench, 10 * TIMEOUT_MS)
    assert codes(bench) == {}, "one answer"


def test_each_commit_has_its_own_time(bench: Bench) -> None:
    first = bench.ask(commit(offset=5), 8)
    bench.end_turn()
    pass_time(bench, TIMEOUT_MS // 2)
    held = Pending()

    def write(op: Any) -> Pending:
        op.respond(held, "written")
        return held

    bench.shard.execute(write)
    bench.end_turn()

    pass_time(bench, TIMEOUT_MS // 2 + 500)

    assert codes(bench) == {first: ErrorCode.COORDINATOR_NOT_AVAILABLE}
    assert not held.done
    pass_time(bench, TIMEOUT_MS)
    assert getattr(held.error, "code", None) == ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_what_follows_a_late_commit_still_happens(bench: Bench) -> None:
    """The records are in the log: when the followers are back, they are committed."""
    called = []
    token = bench.ask(commit(offset=5), 8)
    bench.shard.execute(lambda op: op.then(lambda: called.append(True)))
    bench.end_turn()
    pass_time(bench, TIMEOUT_MS + 1000)
    assert codes(bench) == {token: ErrorCode.COORDINATOR_NOT_AVAILABLE}
    assert not called

    source: Any = bench.logs.log(0)
    source.set_high_watermark(source.log_end_offset)
    bench.coordinators.appended(source, 1, 100)
    bench.end_turn()

    assert called == [True]
    assert codes(bench) == {}


def test_commit_that_is_replicated_in_time_succeeds(bench: Bench) -> None:
    token = bench.ask(commit(offset=5), 8)
    bench.end_turn()
    pass_time(bench, TIMEOUT_MS - 1000)
    source: Any = bench.logs.log(0)
    source.set_high_watermark(source.log_end_offset)
    bench.coordinators.appended(source, 1, 100)
    bench.end_turn()
    pass_time(bench, 10 * TIMEOUT_MS)

    assert codes(bench) == {token: 0}
