"""Offsets of a mirror are committed once everything before them is acknowledged."""

from __future__ import annotations

import pytest

from kbroker.client.mirror.ledger import Ledger, Several

pytestmark = pytest.mark.unit

A, B = ("t", 0), ("t", 1)


class Sent:
    def __init__(self) -> None:
        self.ended = False
        self.errors: dict[int, Exception] = {}

    def done(self) -> bool:
        return self.ended

    def exceptions(self, timeout: float | None = None) -> dict[int, Exception]:
        return self.errors


def test_marks_wait_for_all_that_was_sent_before():
    ledger = Ledger()
    first, second = Sent(), Sent()
    ledger.mark({A: 1})
    ledger.add(first)
    ledger.mark({A: 5, B: 2})
    ledger.add(second)
    ledger.mark({A: 9})

    assert ledger.settle() == {A: 1}
    second.ended = True
    assert ledger.settle() == {}, "the first one may still fail"
    first.ended = True
    assert ledger.settle() == {A: 9, B: 2}
    assert ledger.settle() == {} and ledger.waiting_since is None


def test_partitions_of_others_are_not_committed():
    ledger = Ledger()
    ledger.mark({A: 1, B: 2})
    ledger.forget([B])

    assert ledger.settle() == {A: 1}


def test_failures_are_counted_and_told_once():
    ledger = Ledger()
    sent = Sent()
    sent.errors = {0: ValueError("a"), 3: ValueError("b")}
    ledger.add(sent)
    assert ledger.settle() == {} and not ledger.errors
    sent.ended = True
    ledger.settle()

    assert ledger.failed == 2
    assert [str(error) for error in ledger.errors] == ["a"]


def test_oldest_of_what_waits_has_a_time():
    now = [5.0]
    ledger = Ledger(lambda: now[0])
    ledger.mark({A: 1})
    first = Sent()
    ledger.add(first)
    now[0] = 6.0
    ledger.add(Sent())
    assert ledger.waiting_since == 5.0
    first.ended = True
    ledger.settle()
    assert ledger.waiting_since == 6.0


def test_single_futures_end_together():
    class Future:
        def __init__(self, error: Exception | None, done: bool = True) -> None:
            self._error, self._done = error, done

        def done(self) -> bool:
            return self._done

        def exception(self, timeout: float | None) -> Exception | None:
            return self._error

    error = ValueError("x")
    assert not Several([Future(None), Future(None, False)]).done()
    both = Several([Future(None), Future(error)])
    assert both.done() and both.exceptions() == {1: error}
