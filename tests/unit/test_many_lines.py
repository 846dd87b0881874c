"""Lines about thousands of partitions become one."""

from __future__ import annotations

import logging

import pytest

from kbroker import logcontext
from kbroker.logcontext import EACH_MAX

pytestmark = pytest.mark.unit
logger = logging.getLogger("kbroker.many")


def lines(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == level]


def test_few_lines_are_written_as_they_are(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with logcontext.many_lines(logger) as many:
        for number in range(EACH_MAX):
            many.say(logging.INFO, "t-%d has moved", number)

    assert lines(caplog, logging.INFO) == [f"t-{number} has moved" for number in range(EACH_MAX)]
    assert lines(caplog, logging.DEBUG) == []


def test_many_lines_of_a_kind_are_one_with_count_and_sample(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    with logcontext.many_lines(logger) as many:
        for number in range(2000):
            many.say(logging.INFO, "t-%d has moved", number)
        many.say(logging.WARNING, "t-%d has no leader", 7)

    (line,) = lines(caplog, logging.INFO)
    assert line == (
        "2000 changes like these (each at DEBUG): t-0 has moved; t-1 has moved; t-2 has moved"
    )
    assert lines(caplog, logging.WARNING) == ["t-7 has no leader"]
    assert len(lines(caplog, logging.DEBUG)) == 2000


def test_lines_are_written_although_the_change_fails(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with pytest.raises(ValueError), logcontext.many_lines(logger) as many:
        many.say(logging.INFO, "t-%d has moved", 1)
        raise ValueError

    assert lines(caplog, logging.INFO) == ["t-1 has moved"]
