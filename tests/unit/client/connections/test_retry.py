"""Pauses between attempts: they grow, but each part of the deadline has an attempt."""

from __future__ import annotations

import itertools
import logging
from types import SimpleNamespace

import pytest

from kbroker.client.connections import retry as subject
from kbroker.client.connections.retry import Retry
from kbroker.client.errors import ConnectionLost, RejectedError, Timeout, UnreachableError
from kbroker.errors import ErrorCode
from kbroker.logcontext import RateLimit

CUT = Timeout("a:1: connect", 0.0)
REFUSED = RejectedError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "t-0")


@pytest.fixture(params=[0.7, 1.0, 1.3])
def clock(request, monkeypatch):
    """A clock that only pauses advance, each with the given jitter."""
    now = [100.0]

    def monotonic() -> float:
        return now[0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(Retry, "clock", staticmethod(monotonic))
    monkeypatch.setattr(Retry, "sleep", staticmethod(sleep))
    monkeypatch.setattr(subject, "random", SimpleNamespace(uniform=lambda low, high: request.param))
    monkeypatch.setattr(subject, "_told", RateLimit(30.0, monotonic))
    return now


def attempts(seconds: float, clock: list[float]) -> list[float]:
    """The times of attempts that all failed; as fractions of the deadline."""
    began = clock[0]
    retry = Retry("it", seconds)
    made = []
    with pytest.raises(Timeout):
        while True:
            made.append((clock[0] - began) / seconds)
            retry.pause(REFUSED)
    return made


@pytest.mark.parametrize("seconds", [0.5, 1.0, 3.0, 60.0])
def test_no_part_of_the_deadline_goes_without_an_attempt(seconds, clock):
    made = [*attempts(seconds, clock), 1.0]

    assert max(b - a for a, b in itertools.pairwise(made)) < 0.2


def test_pauses_grow_to_a_second(clock):
    made = [60 * part for part in attempts(60.0, clock)]
    pauses = [round(b - a, 6) for a, b in itertools.pairwise(made)]

    assert pauses[0] < 0.03
    assert pauses == sorted(pauses)
    assert 0.7 <= pauses[-1] < 1.31


def test_attempt_that_the_deadline_ended_hides_no_trouble(clock: list[float]) -> None:
    """Jitter may start an attempt when there is hardly any time left."""
    call = Retry("offsets", 0.5)
    call.pause(ConnectionLost("a:1", "gone"))
    clock[0] += 1

    with pytest.raises(Timeout, match=r"last: a:1: gone, then the deadline passed before a:1: co"):
        call.pause(CUT)


def test_address_that_was_tried_when_the_deadline_passed_tells_why_not_before(
    clock: list[float],
) -> None:
    call = Retry("metadata", 0.5)
    call.pause(UnreachableError({"a:1": "not a Kafka response", "b:1": "refused"}))
    clock[0] += 1

    with pytest.raises(UnreachableError) as caught:
        call.pause(UnreachableError({"a:1": str(CUT)}))

    assert caught.value.tried == {"a:1": f"not a Kafka response, then {CUT}", "b:1": "refused"}


def test_trouble_before_some_progress_is_not_told(clock: list[float]) -> None:
    call = Retry("offsets", 0.5)
    call.pause(ConnectionLost("a:1", "gone"))
    call.progress()
    clock[0] += 1

    with pytest.raises(Timeout, match=r"last: the deadline passed"):
        call.pause(CUT)


def test_broker_that_stays_away_is_told_once_and_long_before_the_deadline(
    clock: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    """A command with a wrong port was silent for a minute."""
    caplog.set_level(logging.WARNING, subject.LOGGER)  # the mirror maker's tests silence it
    began, told_at = clock[0], 0.0
    calls = Retry("metadata", 60.0), Retry("offsets", 60.0)
    with pytest.raises(UnreachableError):
        while True:
            for call in calls:
                call.pause(UnreachableError({"a:1": "refused"}))
            told_at = told_at or (clock[0] - began if caplog.records else 0.0)

    assert 5 <= told_at < 9
    assert len(caplog.messages) == 1
    assert ": no broker could be reached: a:1: refused; retrying for another 5" in caplog.text


def test_trouble_that_is_soon_over_is_not_in_the_log(
    clock: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    call = Retry("offsets", 60.0)
    for _ in range(3):
        call.pause(REFUSED)
        clock[0] += 4
        call.progress()

    assert not caplog.records
