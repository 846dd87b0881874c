"""A broker seen by the names of its shared memory: as another user, and from another container."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from support.brokers.shared_names import names_of, names_of_runs, nonces_of

from kbroker.cli.arguments import CommandFailed
from kbroker.cli.local.attached import AttachedBroker
from kbroker.cli.local.board import board, look
from kbroker.cli.local.runs import of_process, running
from kbroker.client.admin import topics as topic_admin
from kbroker.client.connections.cluster import Cluster
from kbroker.ipc.named_memory import named_runs
from kbroker.testing import Broker, wait_until

pytestmark = pytest.mark.integration

PROGRAM = "import sys; from kbroker.commands import kbroker; sys.exit(kbroker())"
# A user and a group that nothing here belongs to.
USER, GROUP = 64_001, 64_002
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    group = str(GROUP) if os.geteuid() == 0 else ""
    with Broker({"shared.memory.group": group}) as started:
        with Cluster(started.bootstrap) as cluster:
            topic_admin.create_topics(cluster, [topic_admin.NewTopic("orders", 2)])
        yield started


def seen_as(user: int, group: int, pid: int) -> dict[str, Any]:
    """The board of a broker as somebody else sees it; {} if it is not seen."""
    look(AttachedBroker(of_process(pid)))  # imports everything: another user may not read our files
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        found: dict[str, Any] = {}
        try:
            os.setgroups([])
            os.setresgid(group, group, group)
            os.setresuid(user, user, user)
            seen = AttachedBroker(of_process(pid))
            now = look(seen)
            found = board(seen, now, now)
        except CommandFailed:
            pass  # nothing is found, which the caller judges
        finally:
            os.write(writer, json.dumps(found).encode())
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as file:
        text = file.read()
    os.waitpid(child, 0)
    document: dict[str, Any] = json.loads(text)
    return document


@needs_root
def test_user_of_the_group_sees_the_broker_and_others_do_not(broker: Broker) -> None:
    wait_until(lambda: all(r["state"] == "ready" for r in board_of(broker)["processes"]))

    found = seen_as(USER, GROUP, broker.pid)

    assert found["broker"]["user"] == "root"
    assert [row["topic"] for row in found["topics"]] == ["orders"]
    rows = {row["process"]: row for row in found["processes"]}
    assert {row["state"] for row in rows.values()} == {"ready"}
    assert rows["io-0"]["pid"] == broker.pids["io-0"]
    assert rows["io-0"]["descriptors"] is None  # of another user's process
    assert seen_as(USER, USER, broker.pid) == {}


def board_of(broker: Broker) -> dict[str, Any]:
    seen = AttachedBroker(of_process(broker.pid))
    now = look(seen)
    return board(seen, now, now)


@needs_root
@pytest.mark.skipif(not shutil.which("unshare"), reason="needs unshare")
def test_other_container_with_the_same_shared_memory_sees_the_broker(broker: Broker) -> None:
    """Its process ids mean nothing there, and there is no way to trace them."""
    words = ["top", "--pid", str(broker.pid), "-n", "1", "-d", "0.1", "-o", "json"]
    done = subprocess.run(
        ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", PROGRAM, *words],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [row["topic"] for row in found["topics"]] == ["orders"]
    assert {row["state"] for row in found["processes"]} == {"ready"}
    assert {row["cpu_percent"] for row in found["processes"]} == {None}
    stop = [*done.args[:6], "stop", "--pid", str(broker.pid)]
    refused = subprocess.run(stop, capture_output=True, text=True, timeout=60, check=False)
    assert (refused.returncode, broker.running) == (1, True)


def test_names_go_at_a_stop_and_after_a_kill_at_the_next_start() -> None:
    with Broker() as broker:
        first = nonces_of(broker)
        assert len(names_of(broker)) >= 12
        broker.kill_all()
        assert names_of_runs(first)
        broker.start()
        assert not names_of_runs(first)
        assert nonces_of(broker) != first
        broker.stop()
        assert not names_of(broker)
        broker.start()
        broker.kill_all()
        last = nonces_of(broker)
        assert names_of_runs(last)
    assert not names_of_runs(last)  # kbroker.testing cleans up after itself


def test_broker_whose_names_somebody_removed_is_still_seen() -> None:
    """As systemd-logind does at the end of a user's session, unless RemoveIPC=no."""
    with Broker() as broker:
        run = of_process(broker.pid)
        [nonce] = [
            nonce for nonce in named_runs()
            if os.path.exists(f"/dev/shm/kbroker-{nonce}.processes")
            and os.stat(f"/dev/shm/kbroker-{nonce}.processes").st_ino == run.identity[1]
        ]  # fmt: skip
        for region in named_runs()[nonce]:
            os.unlink(f"/dev/shm/kbroker-{nonce}.{region}")

        found = board_of(broker)

        assert found["broker"]["pid"] == broker.pid
        assert broker.pid in [run.pid for run in running()]


def test_stopped_supervisor_is_running_and_a_killed_one_is_not(broker: Broker) -> None:
    with Broker() as other:
        run = of_process(other.pid)
        os.kill(other.pid, signal.SIGSTOP)
        assert run.is_running
        other.kill_all()
        assert not run.is_running
