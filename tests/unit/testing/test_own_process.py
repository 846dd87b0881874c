"""Tests that run in a fork of the test process."""

from __future__ import annotations

import os
import signal

import pytest
from support.running.own_process import run_in_own_process

pytestmark = pytest.mark.unit


def test_test_that_passes_changes_nothing_here() -> None:
    seen: list[int] = []

    run_in_own_process(lambda: seen.append(1))

    assert seen == []


def test_failure_is_told_with_its_traceback() -> None:
    def failing() -> None:
        assert os.getpid() == 0, "the reason"

    with pytest.raises(pytest.fail.Exception, match=r"in failing\n(.*\n)*.*the reason"):
        run_in_own_process(failing)


def test_process_that_dies_is_a_failure() -> None:
    with pytest.raises(pytest.fail.Exception, match="ended with status 9"):
        run_in_own_process(lambda: os.kill(os.getpid(), signal.SIGKILL))


@pytest.mark.own_process
def test_mark_gives_a_test_a_process_of_its_own(request: pytest.FixtureRequest) -> None:
    assert os.getppid() == request.config.stash[PARENT]


PARENT = pytest.StashKey[int]()


@pytest.fixture(autouse=True)
def _parent_is_known(request: pytest.FixtureRequest) -> None:
    request.config.stash[PARENT] = os.getpid()
