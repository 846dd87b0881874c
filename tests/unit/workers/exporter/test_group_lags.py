"""Lag of groups, from what io workers write down."""

from __future__ import annotations

import json
import mmap
from array import array
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from kbroker._ext.coordinator.offset_store import OffsetStore
from kbroker._ext.shared.group_offsets import entries, region_size
from kbroker.descriptors import readable
from kbroker.errors import ErrorCode, WireError
from kbroker.ipc import calls
from kbroker.ipc.pending import Pending, run
from kbroker.ipc.process_table import Address, ProcessKind
from kbroker.testing import wait_until
from kbroker.workers.exporter.groups import LagCollector
from kbroker.workers.exporter.lag_questions import LagQuestions
from kbroker.workers.exporter.partitions import ReadableEnds
from kbroker.workers.exporter.record_ages import LOOKUPS_MAX
from kbroker.workers.io.group_figures import GroupFigures

pytestmark = pytest.mark.unit

NO_ID = bytes(16)


def store_of(**offsets: dict[tuple[str, int], int]) -> OffsetStore:
    store = OffsetStore()
    for group, rows in offsets.items():
        for (topic, partition), offset in rows.items():
            store.put_commit(group, topic, partition, offset, -1, "", 5, -1, NO_ID, 0, -1)
    return store


class Rpc:
    """Both ends: what one serves, the other calls. Sleeping is over at once."""

    def __init__(self) -> None:
        self.served: dict[str, Any] = {}
        self.is_stuck = False

    def serve(self, row: Any, serve: Any) -> None:
        self.served[row.name] = serve

    def call(self, to: Address, row: Any, request: Any) -> Pending[Any]:
        if self.is_stuck:
            failed: Pending[Any] = Pending()
            failed.resolve(error=WireError(ErrorCode.REQUEST_TIMED_OUT))
            return failed
        return run(self.served[row.name](to, request))

    def sleep(self, delay_ms: int) -> Pending[None]:
        done: Pending[None] = Pending()
        done.resolve()
        return done


class Lags:
    """One io worker with one shard, and the exporter that asks it."""

    def __init__(self, store: OffsetStore, details_max: int = 100, groups: Any = None) -> None:
        self.rpc = Rpc()
        self.region = mmap.mmap(-1, region_size())
        offsets = SimpleNamespace(store=store)
        machine = SimpleNamespace(offsets=offsets, groups=groups or {})
        shard = SimpleNamespace(topic="__consumer_offsets", state="active", machine=machine)
        coordinators: Any = SimpleNamespace(shards=lambda: [shard])
        rpc: Any = self.rpc
        GroupFigures(rpc, coordinators, self.region)
        worker = Address(ProcessKind.IO_WORKER, 0)
        self.looked_up: list[tuple[str, int, int]] = []

        def age_s(*place: Any) -> float:
            self.looked_up.append(place)
            return 2.5

        ages: Any = SimpleNamespace(begin=lambda: None, age_s=age_s)
        self.lags = LagCollector(rpc, [worker], [self.region], ages, details_max)

    def text(self, **high_watermarks: list[int]) -> str:
        ends = ReadableEnds(
            {topic: array("q", offsets).tobytes() for topic, offsets in high_watermarks.items()},
            frozenset(high_watermarks) - {"v"},
        )
        outcome = run(self.lags.refresh(lambda: ends))
        assert outcome.error is None
        return "".join([*self.lags.exporter_lines(), *self.lags.native_lines()])


def test_lag_is_the_distance_to_the_high_watermark() -> None:
    lags = Lags(store_of(g={("t", 0): 3, ("t", 1): 8}, other={("t", 0): 10}))

    text = lags.text(t=[10, 8])

    pair = 'consumergroup="g",topic="t",partition='
    assert f'kafka_consumergroup_lag{{{pair}"0"}} 7\n' in text
    assert f'kafka_consumergroup_lag{{{pair}"1"}} 0\n' in text
    assert f'kafka_consumergroup_current_offset{{{pair}"1"}} 8\n' in text
    assert 'kafka_consumergroup_lag_sum{consumergroup="g",topic="t"} 7\n' in text
    assert 'kafka_consumergroup_lag_sum{consumergroup="other",topic="t"} 0\n' in text
    assert 'kbroker_consumergroup_lag_max{consumergroup="g",topic="t"} 7\n' in text
    assert f'kbroker_consumergroup_lag_seconds{{{pair}"0"}} 2.5\n' in text
    assert f'kbroker_consumergroup_lag_seconds{{{pair}"1"}} 0.0\n' in text


def test_lag_without_a_replica_is_absent() -> None:
    text = Lags(store_of(g={("gone", 0): 3, ("t", 5): 1})).text(t=[10])

    assert "kafka_consumergroup_current_offset{" in text
    assert "kafka_consumergroup_lag" not in text
    assert "lag_seconds" not in text


def test_lag_of_a_group_is_exact_where_all_of_its_topics_are_led_here() -> None:
    lags = Lags(
        store_of(
            g={("t", 0): 3, ("u", 0): 1},
            beyond={("t", 0): 3, ("v", 0): 1},
            gone={("t", 0): 3, ("w", 0): 1},
        )
    )
    lags.text(t=[10], u=[5], v=[5])

    assert lags.lags.exact_lags() == {"g": 11}


def test_lags_are_of_after_the_question() -> None:
    """A page that is asked for while another look is under way waits for the next one."""
    questions = LagQuestions()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(questions.ask)
        wait_until(lambda: readable([questions.fileno()], 0))
        questions.heard()
        assert questions.begin()
        second = pool.submit(questions.ask)
        wait_until(lambda: readable([questions.fileno()], 0))
        questions.answer({"g": 1})
        assert first.result() == {"g": 1}
        assert not second.done() and not questions.is_answering
        questions.heard()
        assert questions.begin()
        questions.answer({"g": 2})

        assert second.result() == {"g": 2}
        assert not questions.begin()


def test_group_is_told_with_its_state_and_members() -> None:
    joined = SimpleNamespace(group_id="a", kind="consumer", state="Stable", members=[1, 2])

    text = Lags(store_of(simple={("t", 0): 1}), groups={"a": joined}).text(t=[1])

    assert 'kafka_consumergroup_members{consumergroup="a"} 2\n' in text
    assert 'kafka_consumergroup_members{consumergroup="simple"} 0\n' in text
    assert 'kbroker_group_state{group="a",kind="consumer",state="Stable"} 1\n' in text
    assert 'kbroker_group_state{group="simple",kind="classic",state="Empty"} 1\n' in text


def test_beyond_the_bound_there_are_sums_only() -> None:
    lags = Lags(store_of(g={("t", number): 1 for number in range(5)}), details_max=4)

    text = lags.text(t=[3] * 5)

    assert lags.lags.left_out == 5
    assert 'partition="' not in text
    assert 'kafka_consumergroup_lag_sum{consumergroup="g",topic="t"} 10\n' in text


def test_beyond_the_bound_seconds_are_those_of_the_largest_lag() -> None:
    """One look-up for a group and topic, not one for each partition."""
    offsets = {("t", 0): 9, ("t", 1): 2, ("t", 2): 5, ("u", 0): 3}
    lags = Lags(store_of(g=offsets, other={("t", 1): 10}), details_max=1)

    text = lags.text(t=[10, 10, 10], u=[3])
    document = json.loads("".join(lags.lags.document()))

    assert 'kbroker_consumergroup_lag_seconds{consumergroup="g",topic="t"} 2.5\n' in text
    assert 'kbroker_consumergroup_lag_seconds{consumergroup="g",topic="u"} 0.0\n' in text
    assert set(lags.looked_up) == {("t", 1, 2)}
    group, other = document["groups"]
    assert (group["group"], group["lag"], group["lag_max"]) == ("g", 14, 8)
    assert group["lag_seconds"] == 2.5
    assert {row["topic"]: row["lag_seconds"] for row in group["topics"]} == {"t": 2.5, "u": 0.0}
    assert (other["lag"], other["lag_seconds"], other["members"]) == (0, 0.0, 0)


def test_document_tells_no_age_that_is_only_one_of_many() -> None:
    """Not all can be looked up at once: the oldest might not be among them."""
    offsets = {("t", number): 9 for number in range(LOOKUPS_MAX + 1)}
    lags = Lags(store_of(g=offsets | {("t", 7): 1}), details_max=10_000)
    lags.text(t=[10] * (LOOKUPS_MAX + 1))
    lags.looked_up.clear()

    [group] = json.loads("".join(lags.lags.document()))["groups"]

    assert group["lag_seconds"] == 2.5
    assert lags.looked_up == [("t", 7, 1)]


def test_groups_as_a_document_have_the_oldest_record_of_all_partitions() -> None:
    lags = Lags(store_of(g={("t", 0): 3, ("t", 1): 8, ("gone", 0): 1}))
    lags.text(t=[10, 8])

    [group] = json.loads("".join(lags.lags.document()))["groups"]

    assert (group["kind"], group["state"], group["lag"]) == ("classic", "Empty", 7)
    assert {row["topic"]: (row["lag"], row["lag_seconds"]) for row in group["topics"]} == {
        "t": (7, 2.5), "gone": (None, None),
    }  # fmt: skip


def test_io_worker_that_cannot_answer_leaves_its_groups_out() -> None:
    lags = Lags(store_of(g={("t", 0): 1}))
    assert "kafka_consumergroup_lag" in lags.text(t=[3])
    lags.rpc.is_stuck = True

    assert lags.text(t=[3]) == ""


def test_second_call_ends_the_first_that_would_write_into_its_answer() -> None:
    store = store_of(g={("t", 0): 1})
    lags = Lags(store)
    waiting: Pending[None] = Pending()
    lags.rpc.sleep = lambda delay_ms: waiting  # type: ignore[method-assign]
    worker = Address(ProcessKind.IO_WORKER, 0)
    first = lags.rpc.call(worker, calls.WRITE_OFFSETS, calls.Nothing())
    lags.rpc.sleep = Rpc.sleep.__get__(lags.rpc)  # type: ignore[method-assign]

    second = lags.rpc.call(worker, calls.WRITE_OFFSETS, calls.Nothing())
    waiting.resolve()

    assert isinstance(first.error, WireError)
    assert second.value.shards[0].count == 1


def test_entries_outside_a_region_are_refused() -> None:
    with pytest.raises(ValueError, match="no entries"):
        entries(bytearray(64), 1, 2)


def test_offsets_that_do_not_fit_are_counted() -> None:
    store = store_of(g={("t", number): 1 for number in range(5)})

    assert store.write_down(bytearray(3 * 32), 1) == 2


def test_pending_offsets_are_not_written() -> None:
    store = store_of(g={("t", 0): 1})
    store.put_commit("g", "t", 1, 7, -1, "", 5, -1, NO_ID, 1, 99)

    assert store.write_down(bytearray(10 * 32), 0) == 1
