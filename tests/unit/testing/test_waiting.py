"""wait_until."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from kbroker.testing import wait_until, waiting
from kbroker.testing.broker import Broker

pytestmark = pytest.mark.unit


def test_value_is_returned_as_soon_as_it_is_true() -> None:
    values: Iterator[object] = iter([0, None, "here", "later"])

    assert wait_until(lambda: next(values)) == "here"


def test_timeout_tells_the_last_state_and_what_was_awaited() -> None:
    with pytest.raises(AssertionError, match=r"the moon; last state \[\]"):
        wait_until(list, timeout=0, what="the moon")


def test_assertion_inside_counts_as_not_yet() -> None:
    values = iter([1, 2, 3])

    def is_three() -> bool:
        value = next(values)
        assert value == 3, f"still {value}"
        return True

    assert wait_until(is_three)


def test_timeout_tells_the_last_assertion() -> None:
    def fails() -> bool:
        raise AssertionError("still raining")

    with pytest.raises(AssertionError, match="still raining"):
        wait_until(fails, timeout=0)


def test_other_errors_end_the_wait() -> None:
    with pytest.raises(ZeroDivisionError):
        wait_until(lambda: 1 // 0)


def test_settings_may_be_given_by_kafka_name_or_with_underscores() -> None:
    broker = Broker({"log.segment.bytes": 4096}, num_io_threads=3, auto_create_topics_enable=False)

    assert broker.config["log.segment.bytes"] == "4096"
    assert broker.config["num.io.threads"] == "3"
    assert broker.config["auto.create.topics.enable"] == "false"
    broker.close()
    assert not broker.directory.exists()


@pytest.mark.parametrize(("patience", "given_up_after"), [(0.0, 5.0), (30.0, 30.0)])
def test_gives_up_at_its_timeout_or_when_patience_ends(monkeypatch, patience, given_up_after):
    now = [100.0]
    monkeypatch.setattr(waiting, "PATIENCE_S", patience)
    time = SimpleNamespace(
        monotonic=lambda: now[0], sleep=lambda seconds: now.append(now.pop() + seconds)
    )
    monkeypatch.setattr(waiting, "time", time)

    with pytest.raises(AssertionError, match=f"not within {given_up_after:g} s"):
        wait_until(list, timeout=5)

    assert given_up_after <= now[0] - 100 < given_up_after + 1
