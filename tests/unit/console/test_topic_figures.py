"""Rates of topics, from the ends of their partitions at two looks."""

from __future__ import annotations

import pytest

from kbroker.client.admin.topics import TopicState
from kbroker.console import topic_figures
from kbroker.console.topic_figures import RATE_MOST_S, RATE_STEP_S, TopicRates


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def topic(name: str = "t", number: int = 1) -> TopicState:
    return TopicState(name, bytes([number]) * 16, False, [])


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def rates(clock: Clock) -> TopicRates:
    return TopicRates(clock)


def test_first_look_knows_no_rate(rates: TopicRates) -> None:
    assert rates.look(topic(), 100) is None


def test_rate_is_what_has_been_added_since(rates: TopicRates, clock: Clock) -> None:
    rates.look(topic(), 100)
    clock.now += 10

    assert rates.look(topic(), 150) == 5.0


def test_second_look_of_a_page_repeats_the_rate(rates: TopicRates, clock: Clock) -> None:
    rates.look(topic(), 100)
    clock.now += RATE_STEP_S
    rates.look(topic(), 100 + int(RATE_STEP_S))

    assert rates.look(topic(), 5_000) == 1.0


def test_rate_follows_the_last_half_minute(rates: TopicRates, clock: Clock) -> None:
    rates.look(topic(), 0)
    clock.now += RATE_STEP_S
    rates.look(topic(), 3_000_000)
    clock.now += RATE_STEP_S

    assert rates.look(topic(), 3_000_000) == 0.0


def test_rate_of_before_a_long_pause_is_not_told(rates: TopicRates, clock: Clock) -> None:
    rates.look(topic(), 0)
    clock.now += RATE_MOST_S + 1

    assert rates.look(topic(), 100) is None


@pytest.mark.parametrize("again", [topic(number=2), topic()], ids=["another id", "lower end"])
def test_topic_that_was_made_again_has_no_rate_yet(
    rates: TopicRates, clock: Clock, again: TopicState
) -> None:
    rates.look(topic(), 100)
    clock.now += 10

    assert rates.look(again, 99) is None


def test_unknown_end_has_no_rate_and_spoils_none(rates: TopicRates, clock: Clock) -> None:
    rates.look(topic(), 100)
    clock.now += 5
    assert rates.look(topic(), None) is None
    clock.now += 5

    assert rates.look(topic(), 110) == 1.0


def test_topics_of_the_oldest_looks_are_forgotten(
    rates: TopicRates, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_figures, "RATES_MAX", 2)
    for name in ("a", "b", "c"):
        rates.look(topic(name), 0)
    clock.now += 10

    assert [rates.look(topic(name), 10) for name in ("c", "b", "a")] == [1.0, 1.0, None]
