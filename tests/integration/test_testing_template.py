"""Brokers of tests are forks of a process that has already imported everything."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from kbroker.testing import Broker, processes, template, wait_until
from kbroker.testing.broker import COMMAND, _responds

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[2]
STARTER = """
import sys, time
from kbroker.testing import Broker
with Broker() as broker:
    print(broker.pid, flush=True)
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def environment() -> Iterator[None]:
    """One of its own, so that the templates of other tests stay as they are."""
    kept = dict(template._templates)
    template._templates.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KBROKER_TEST_OF_TEMPLATES", "1")
        yield
    template._close_all()
    template._templates.clear()
    template._templates.update(kept)


def starter_of(broker: Broker) -> int:
    return processes._parent_of(str(broker.pid))


def test_brokers_come_from_one_template_and_start_again_from_it(environment: None) -> None:
    with Broker() as one, Broker() as other:
        assert starter_of(one) == starter_of(other) != os.getpid()
        before = starter_of(one)

        one.restart()

        assert starter_of(one) == before
        assert _responds(one.host, one.port, timeout=30)


def test_what_a_broker_inherits_is_as_it_is_now(
    environment: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with Broker() as before:
        soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
        monkeypatch.setenv("KBROKER_TEST_OF_TEMPLATES", "2")
        monkeypatch.chdir(tmp_path)
        resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
        try:
            with Broker() as after:
                assert starter_of(before) != starter_of(after)
                said = Path(f"/proc/{starter_of(after)}/environ").read_bytes()
                assert b"KBROKER_TEST_OF_TEMPLATES=2" in said.split(b"\0")
                assert os.readlink(f"/proc/{after.pid}/cwd") == str(tmp_path)
                assert resource.prlimit(after.pid, resource.RLIMIT_CORE)[0] == 0
        finally:
            resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))


def test_broker_beyond_the_number_of_templates_is_started_by_its_command(
    environment: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KBROKER_TEST_OF_TEMPLATES", "3")
    monkeypatch.setattr(template, "TEMPLATES_MAX", len(template._templates))
    with Broker() as broker:
        assert starter_of(broker) == os.getpid()
        assert _responds(broker.host, broker.port, timeout=30)


def test_command_itself_starts_a_broker() -> None:
    with Broker(command=list(COMMAND)) as broker:
        assert starter_of(broker) == os.getpid()
        assert _responds(broker.host, broker.port, timeout=30)
        assert broker.stop() == 0


@pytest.mark.slow
def test_template_that_was_killed_takes_its_brokers_along_and_is_replaced(
    environment: None,
) -> None:
    with Broker() as broker:
        killed, pid = starter_of(broker), broker.pid

        os.kill(killed, signal.SIGKILL)

        wait_until(lambda: not processes.exists(pid), 60, "the broker notices it")
        assert broker.stop() == -signal.SIGKILL
        broker.start()
        assert starter_of(broker) == os.getpid(), "the one that finds out has none"
        broker.restart()
        assert starter_of(broker) not in (killed, os.getpid())


def test_killed_starter_leaves_neither_template_nor_broker() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-c", STARTER], stdout=subprocess.PIPE, env=environment
    ) as starter:
        assert starter.stdout is not None
        supervisor = int(starter.stdout.readline())
        template_pid = processes._parent_of(str(supervisor))
        children = processes.child_pids(supervisor)

        starter.kill()

        for pid in (template_pid, supervisor, *children):
            wait_until(lambda pid=pid: not processes.exists(pid), 60)  # type: ignore[misc]


def test_interrupt_from_the_terminal_reaches_brokers_and_not_the_template(
    environment: None,
) -> None:
    with Broker() as broker:
        os.kill(starter_of(broker), signal.SIGINT)
        os.kill(broker.pid, signal.SIGINT)

        assert broker._process is not None
        assert broker._process.wait(60) == 0
        broker.start()
        assert starter_of(broker) != os.getpid()


def test_wait_for_a_broker_that_runs_ends_in_time(environment: None) -> None:
    with Broker() as broker:
        assert broker._process is not None
        with pytest.raises(subprocess.TimeoutExpired):
            broker._process.wait(0.01)
        with suppress(ProcessLookupError):
            broker._process.kill()
        assert broker._process.wait(60) == -signal.SIGKILL
        assert broker._process.poll() == -signal.SIGKILL
        assert not broker.running
