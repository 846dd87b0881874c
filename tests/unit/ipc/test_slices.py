"""Coroutines that take turns, the quick ones first; the tests set the time."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from kbroker.ipc.rpc import Pending
from kbroker.ipc.slices import PATIENCE_MAX, PAUSE, SLICE_NS, Slices, Turn

pytestmark = pytest.mark.unit

STEP_NS = SLICE_NS // 4


class Work:
    """Slices with a clock of their own, and a record of what ran in which order."""

    def __init__(self) -> None:
        self.now_ns = 1_000 * SLICE_NS
        self.slices = Slices(lambda: self.now_ns)
        self.done: list[str] = []

    def start(self, name: str, items: int, turn: Turn | None = None) -> Pending:
        """A task with so many items, a quarter of a slice each."""

        async def go_through() -> str:
            async for _ in self.slices.each(range(items)):
                self.now_ns += STEP_NS
                self.done.append(name)
            return name

        return self.slices.start(turn or Turn(), go_through())

    def run(self) -> str:
        """The names of what ran in one call, in order, each once per slice."""
        self.done.clear()
        self.slices.run()
        return "".join(self.done)


def test_long_work_is_done_a_slice_at_a_time() -> None:
    work = Work()
    outcome = work.start("a", 10)

    runs = [work.run() for _ in range(3)]

    assert runs == ["aaaa", "aaaa", "aa"]
    assert outcome.value == "a"
    assert not work.slices.has_work


def test_those_with_much_to_do_take_turns() -> None:
    work = Work()
    for name in "abc":
        work.start(name, 8)

    assert [work.run() for _ in range(6)] == ["aaaa", "bbbb", "cccc", "aaaa", "bbbb", "cccc"]


def test_quick_one_waits_for_the_slice_that_runs_not_for_one_of_each() -> None:
    """Next to a hundred greedy connections a modest one would wait for a hundred slices at each
    request.
    """
    work = Work()
    for _ in range(100):
        work.start("g", 1_000)
    for _ in range(250):
        work.run()
    modest = Turn()
    for _ in range(50):
        outcome = work.start("m", 1, modest)

        assert "m" in work.run()
        assert outcome.done
        work.run()


def test_slow_one_waits_for_quick_ones_only_so_long() -> None:
    work, slow = Work(), Turn()
    outcome = work.start("s", 8, slow)
    work.run()
    began_ns = work.now_ns

    while not outcome.done:
        for _ in range(4):
            work.start("q", 1)
        work.run()
    took_ns = work.now_ns - began_ns
    while work.slices.has_work:
        work.run()

    assert took_ns <= (PATIENCE_MAX + 2) * SLICE_NS


def test_slow_one_does_not_wait_long_for_few_quick_ones() -> None:
    """They come again at once, and need more than a slice together."""
    work, slow = Work(), Turn()
    quick = {turn: work.start("q", 1, turn) for turn in (Turn() for _ in range(6))}

    def serve() -> int:
        """How long the slow one takes beside them."""
        began_ns, outcome = work.now_ns, work.start("s", 4, slow)
        while not outcome.done:
            work.run()
            for turn, asked in quick.items():
                if asked.done:
                    quick[turn] = work.start("q", 1, turn)
        return work.now_ns - began_ns

    serve()
    serve()  # how long it takes is known from now on

    assert serve() <= 20 * SLICE_NS
    for turn in quick:
        turn.is_gone = True
    work.run()


def test_response_that_was_waited_for_does_not_jump_the_queue() -> None:
    work = Work()
    response = Pending()

    async def waiting() -> int:
        value: int = await response
        work.done.append("w")
        return value

    outcome = work.slices.start(Turn(), waiting())
    work.run()
    response.resolve(7)

    assert not outcome.done, "it goes on when it is its turn, not on the stack of whoever answers"
    assert work.run() == "w"
    assert outcome.value == 7


def test_work_for_nobody_ends_where_it_is() -> None:
    work, turn = Work(), Turn()
    outcome = work.start("a", 1_000, turn)
    work.run()
    turn.is_gone = True

    assert work.run() == ""
    assert outcome.done
    assert not work.slices.has_work


def test_error_is_the_outcome() -> None:
    work = Work()

    async def failing() -> None:
        await PAUSE
        raise ValueError("no")

    outcome = work.slices.start(Turn(), failing())
    work.run()

    assert isinstance(outcome.error, ValueError)


def test_steps_of_a_generator_pause_when_the_slice_is_over() -> None:
    work = Work()

    def steps() -> Generator[None, None, str]:
        for _ in range(6):
            work.now_ns += STEP_NS
            work.done.append("s")
            yield
        return "end"

    async def run_steps() -> Any:
        return await work.slices.finish(steps())

    outcome = work.slices.start(Turn(), run_steps())

    assert [work.run(), work.run()] == ["ssss", "ss"]
    assert outcome.value == "end"


def test_who_takes_long_in_several_steps_is_not_taken_for_quick() -> None:
    """The last step of a long request may be short: the whole request counts."""
    work = Work()
    greedy = [Turn() for _ in range(20)]
    for _ in range(4):
        for turn in greedy:
            work.start("g", 5, turn)  # a slice, and a quarter of one
        while work.slices.has_work:
            work.run()
    modest = Turn()
    for _ in range(2):
        work.start("m", 1, modest)
        work.run()
    for turn in greedy:
        work.start("g", 5, turn)

    work.start("m", 1, modest)

    assert "m" in work.run()
    while work.slices.has_work:
        work.run()
