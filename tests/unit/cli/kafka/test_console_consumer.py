"""Ctrl-C while ``kafka-console-consumer`` reads."""

from __future__ import annotations

import os
import signal
from typing import Any, cast

import pytest

from kbroker.cli.kafka import console_consumer

pytestmark = pytest.mark.unit


class Consumer:
    woken = 0

    def wakeup(self) -> None:
        self.woken += 1


@pytest.fixture
def handler():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("handler")
def test_first_interrupt_wakes_the_consumer_and_a_second_ends_it_at_once():
    consumer, interrupted = Consumer(), cast("list[int]", [])
    console_consumer._end_on_interrupt(cast(Any, consumer), interrupted)

    os.kill(os.getpid(), signal.SIGINT)

    assert interrupted == [signal.SIGINT]
    assert consumer.woken == 1
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.usefixtures("handler")
def test_ignored_interrupt_stays_ignored():
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    console_consumer._end_on_interrupt(cast(Any, Consumer()), [])

    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
