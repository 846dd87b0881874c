"""Many cases in one test: none is left out, and those that fail are named."""

from __future__ import annotations

import inspect

import pytest
from support.running.in_one import SHOWN_MAX, in_one

pytestmark = pytest.mark.unit


def test_all_cases_are_tried_and_those_that_fail_are_named() -> None:
    tried = []

    @in_one("number word", [(n, "w") for n in range(6)])
    def odd_ones_fail(number: int, word: str) -> None:
        tried.append((number, word))
        if number == 5:
            pytest.fail("as a failed pytest.raises does")
        assert number % 2 == 0

    with pytest.raises(BaseExceptionGroup, match="3 of 6 cases failed") as caught:
        odd_ones_fail()

    assert tried == [(n, "w") for n in range(6)]
    notes = [note for error in caught.value.exceptions for note in error.__notes__]
    assert notes == [f"case: {{'number': {n}, 'word': 'w'}}" for n in (1, 3, 5)]


def test_failures_shown_are_bounded() -> None:
    @in_one("number", range(100))
    def all_fail(number: int) -> None:
        raise ValueError

    with pytest.raises(BaseExceptionGroup, match="100 of 100") as caught:
        all_fail()

    assert len(caught.value.exceptions) == SHOWN_MAX


def test_fixtures_are_asked_for_and_the_rest_is_made_for_each_case() -> None:
    seen = []

    @in_one("number", range(3), place=list)
    def test(number: int, place: list[int], name: str) -> None:
        place.append(number)
        seen.append((place, name))

    assert list(inspect.signature(test).parameters) == ["name"]
    test(name="a")
    assert seen == [([0], "a"), ([1], "a"), ([2], "a")]


def test_no_cases_are_a_mistake() -> None:
    with pytest.raises(AssertionError, match="shows nothing"):
        in_one("number", [])
