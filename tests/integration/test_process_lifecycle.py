"""Start, stop and death of the process tree, with real processes and real signals."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.brokers.all_processes import wait_until_all_serve
from support.brokers.process_harness import (
    DOUBLES,
    Client,
    double_broker,
    fastest_stop,
    health,
    tell,
)
from support.brokers.shared_names import names_of, names_of_runs
from support.clients.wire_client import WireClient, batch_of, produce_request
from support.network.frames import request_frame
from support.running.grids import some_of
from support.running.pace import hold
from support.running.sanitizer import TIME_FACTOR

from kbroker.testing import Broker, BrokerFailed, processes, wait_until

pytestmark = pytest.mark.integration

ALL = {"controller-0", "io-0", "io-1", "network-0", "network-1", "acceptor-0", "exporter-0"}
MARKER = ".kafka_cleanshutdown"


@pytest.fixture(scope="module")
def shared() -> Iterator[Broker]:
    with double_broker() as started:
        yield started


@pytest.fixture
def broker(shared: Broker) -> Broker:
    """That of other tests, too: it runs, and has restarted what they have killed."""
    if not shared.running:
        shared.start()
    wait_until(lambda: set(shared.pids) == ALL, what="all processes have their titles")
    return shared


def serves(broker: Broker) -> bool:
    try:
        with Client(broker, timeout=1) as client:
            return client.ask() > 0
    except OSError:
        return False


def all_ready(broker: Broker) -> bool:
    return health(broker)["status"] == "ok"


def test_start_with_defaults_runs_every_kind_under_its_title(broker: Broker) -> None:
    assert set(broker.pids) == ALL
    title = Path(f"/proc/{broker.pid}/cmdline").read_text().rstrip("\0 ")
    assert title == f"kbroker: supervisor {broker.bootstrap} {broker.data_dir}"


def test_start_announces_address_directory_and_durability(broker: Broker) -> None:
    text = broker.log_text

    assert f"bootstrap address {broker.bootstrap}" in text
    assert str(broker.data_dir) in text
    assert "durability: acknowledged means written to the page cache" in text


@pytest.mark.parametrize("number", some_of([signal.SIGTERM, signal.SIGINT], [signal.SIGTERM]))
def test_stop_signal_ends_everything_within_two_seconds(broker: Broker, number: int) -> None:
    def stop() -> None:
        pids = list(broker.pids.values())
        os.kill(broker.pid, number)
        exit_code = broker.stop()

        assert exit_code == 0
        assert not any(map(processes.exists, pids))
        assert (broker.data_dir / MARKER).exists()
        assert list(broker.runtime_dir.iterdir()) == []

    assert fastest_stop(broker, stop) < 2 * TIME_FACTOR

    broker.start()
    assert not (broker.data_dir / MARKER).exists(), "the next start takes it away"


@pytest.mark.parametrize("times", some_of([1, 5], [1]))
def test_stop_right_after_start_is_orderly(times: int) -> None:
    """A child that gets SIGTERM before it has handlers must neither miss it nor die of it."""
    broker = double_broker()
    for _ in range(times):
        broker.start()
        assert broker.stop() == 0
        assert (broker.data_dir / MARKER).exists()
    broker.close()


def test_stop_with_stuck_io_worker_kills_it_and_leaves_no_marker() -> None:
    with double_broker(shutdown_timeout_ms=1500) as broker:
        wait_until(lambda: set(broker.pids) == ALL, what="all processes have their titles")
        tell(broker, "io-1", "linger")
        pids = list(broker.pids.values())
        started_at = time.monotonic()

        exit_code = broker.stop()

        assert time.monotonic() - started_at < 15  # 2, plus a margin for a stalled machine
        assert exit_code == 0
        assert not (broker.data_dir / MARKER).exists()
        assert not any(map(processes.exists, pids))
        assert "io-1 did not stop in time" in broker.log_text


@pytest.mark.parametrize("title", sorted(ALL))
def test_killed_child_is_restarted_and_the_broker_serves(broker: Broker, title: str) -> None:
    before = broker.pids
    kind, _, index = title.rpartition("-")

    broker.kill(kind, int(index))
    wait_until(lambda: broker.pids.get(title, before[title]) != before[title], what=title)
    wait_until(lambda: all_ready(broker), what="all ready")

    assert wait_until(lambda: serves(broker))
    others = {name: pid for name, pid in broker.pids.items() if name != title}
    assert others == {name: pid for name, pid in before.items() if name != title}
    assert f"{title} was killed by SIGKILL" in broker.log_text


def test_child_that_keeps_dying_is_restarted_at_growing_intervals() -> None:
    with double_broker() as broker:
        wait_until(lambda: set(broker.pids) == ALL, what="all processes have their titles")
        for restart in range(4):
            pid = broker.kill("io", 0)
            restarted = f"restart {restart}"
            wait_until(lambda pid=pid: broker.pids.get("io-0", pid) != pid, what=restarted)

        delays = [
            float(line.rpartition("restart in ")[2].split()[0])
            for line in broker.log_text.splitlines()
            if "io-0 was killed" in line
        ]
    assert delays[0] == 0
    assert delays[1] < delays[2] < delays[3]


def test_child_that_cannot_start_stops_the_broker_with_3(tmp_path: Path) -> None:
    with double_broker(log_dirs=tmp_path, worker_restart_backoff_ms=1) as broker:
        wait_until_all_serve(broker)
        tell(broker, "io-0", "refuse")
        broker.kill("io", 0)

        wait_until(lambda: not broker.running)

        assert broker.stop() == 3
        assert broker.log_text.count("io-0 exited with 3; restart") == 4
        assert not (broker.data_dir / MARKER).exists()


def test_process_that_starts_while_the_controller_does_is_told_of_changes() -> None:
    """It has the image of the previous controller, and said hello only to that one."""
    with Broker(num_network_threads=1) as broker:
        stopped = broker.kill("io", 0, signal.SIGSTOP)
        old = broker.kill("network")
        wait_until(lambda: broker.pids.get("network-0", old) != old, what="a new network-0")
        hold(0.5)  # it gets the image, and waits for io-0; a slower machine shows nothing
        broker.kill("controller")
        wait_until(lambda: "controller epoch 2" in broker.log_text, what="a new controller")
        os.kill(stopped, signal.SIGCONT)

        with WireClient((broker.host, broker.port)) as client:
            client.create_topic("topic")
            wait_until(lambda: not client.metadata("topic").topics[0].error_code)


def arena_bytes(broker: Broker) -> int:
    """The memory of network-0's request arena, whichever process has touched it."""
    for entry in Path(f"/proc/{broker.pid}/map_files").iterdir():
        if "kbroker-arena-0" in os.readlink(entry):
            return entry.stat().st_blocks * 512
    raise AssertionError("no arena")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may look at mapped files")
def test_memory_of_requests_is_given_back_when_their_network_process_dies() -> None:
    """When memory runs out the kernel kills the process that uses most of it. The arena outlives
    its process: otherwise the next ones would be killed for nothing, up to the supervisor.
    """
    with Broker(num_network_threads=1) as broker:
        with WireClient((broker.host, broker.port)) as client:
            client.create_topic("topic")
            request = produce_request("topic", {0: batch_of([bytes(20 << 20)])})
            client.socket.sendall(request_frame(request, 8, 1, None)[:-1])
            wait_until(lambda: arena_bytes(broker) > 16 << 20, what="the bytes are there")

            broker.kill("network")

            wait_until(lambda: arena_bytes(broker) < 1 << 20, what="the memory is free")


def test_broker_stops_when_its_runtime_directory_was_removed() -> None:
    """A restarted process could never reach the others again."""
    with double_broker(worker_restart_backoff_ms=1) as broker:
        wait_until(lambda: set(broker.pids) == ALL, what="all processes have their titles")
        (runtime,) = Path(broker.config["runtime.dir"]).glob("kbroker-*")
        shutil.rmtree(runtime)

        broker.kill("io", 0)
        wait_until(lambda: not broker.running)

        assert broker.stop() == 3
        assert f"the runtime directory {runtime} was removed" in broker.log_text


def test_start_that_fails_does_not_say_that_the_last_stop_was_clean(short_path: Path) -> None:
    """No log was opened: logs still have to be checked after the crash."""
    with Broker(directory=short_path) as broker:
        broker.kill_all()
        data = broker.data_dir
        (data / "t-0").mkdir()
        for name in ("kbroker-metadata.copy", "kbroker-metadata.db-wal"):  # nothing to mend it by
            (data / name).unlink(missing_ok=True)
        store = data / "kbroker-metadata.db"
        good = store.read_bytes()
        store.write_bytes(b"not a database " * 1000)
        with pytest.raises(BrokerFailed, match="exited with 3"):
            broker.start()
        assert not (data / ".kafka_cleanshutdown").exists()

        store.write_bytes(good)
        broker.restart()
        assert broker.stop() == 0
        assert (data / ".kafka_cleanshutdown").exists()


def test_child_with_bad_configuration_stops_the_broker_with_2(tmp_path: Path) -> None:
    with double_broker(log_dirs=tmp_path) as broker:
        wait_until_all_serve(broker)
        tell(broker, "io-0", "misconfigured")
        broker.kill("io", 0)

        wait_until(lambda: not broker.running)

        assert broker.stop() == 2
        assert "some.key" in broker.log_text


def test_hangup_reaches_the_controller_only(broker: Broker) -> None:
    os.kill(broker.pid, signal.SIGHUP)

    wait_until(lambda: (broker.data_dir / "controller-0.reloaded").exists())
    assert not (broker.data_dir / "io-0.reloaded").exists()
    assert serves(broker)


def test_quit_signal_prints_all_stacks_and_stops_nothing(broker: Broker) -> None:
    """``kill -3`` prints the threads of a running JVM."""
    wait_until_all_serve(broker)
    before = broker.pids

    os.kill(broker.pid, signal.SIGQUIT)

    heads = len(before) + 1  # and the supervisor's
    wait_until(lambda: broker.log_text.count("most recent call first") >= heads, what="stacks")
    assert "arbiter.py" in broker.log_text
    assert all_ready(broker)
    assert serves(broker)
    assert broker.pids == before


def test_killed_supervisor_takes_children_along_and_next_start_sweeps(broker: Broker) -> None:
    names_before = names_of(broker)
    pids = list(broker.pids.values())

    broker.kill_all()
    left_behind = os.listdir(broker.runtime_dir)
    broker.start()

    assert not any(map(processes.exists, pids))
    assert len(left_behind) == 1
    assert left_behind[0] not in os.listdir(broker.runtime_dir)
    assert names_before
    assert not names_before & names_of(broker)
    assert not names_of_runs({name.partition(".")[0] for name in names_before})
    assert not (broker.data_dir / MARKER).exists()
    assert serves(broker)


def test_second_broker_on_the_same_data_is_refused(broker: Broker) -> None:
    second = double_broker(log_dirs=broker.data_dir)

    with pytest.raises(BrokerFailed, match="no other broker uses"):
        second.start()

    second.close()
    assert serves(broker)


@pytest.mark.parametrize("key", ["listeners", "metrics.port"])
def test_occupied_port_is_named_with_its_key_and_no_data_is_changed(
    broker: Broker, key: str
) -> None:
    address = {"listeners": f"PLAINTEXT://127.0.0.1:{broker.port}", "metrics.port": broker.port}
    second = double_broker(**{key.replace(".", "_"): address[key]})
    (second.data_dir / "t-0").mkdir(parents=True)
    (second.data_dir / MARKER).touch()

    with pytest.raises(BrokerFailed, match=rf"{key}.*address already in use"):
        second.start()

    assert list(second.runtime_dir.iterdir()) == []
    assert sorted(os.listdir(second.data_dir)) == [MARKER, ".lock", "t-0"]
    second.close()


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A path short enough for the sockets: no process is left to remove a runtime directory
    elsewhere.
    """
    with tempfile.TemporaryDirectory(prefix="kb-", dir="/tmp") as path:
        yield Path(path)


def test_broker_stops_when_its_starter_is_killed(short_path: Path) -> None:
    """A test run that is killed must not leave brokers running."""
    code = (
        "import sys, signal; sys.path[:0] = sys.argv[1:3]\n"
        "from support.brokers.process_harness import double_broker\n"
        "broker = double_broker(directory=sys.argv[3]).start()\n"
        "print(broker.pid, flush=True); signal.pause()"
    )
    root = str(Path(__file__).parents[2])
    starter = subprocess.Popen(
        [sys.executable, "-c", code, root, str(DOUBLES.parents[2]), str(short_path)],
        stdout=subprocess.PIPE,
    )
    assert starter.stdout is not None
    with starter.stdout:
        supervisor_pid = int(starter.stdout.readline())

    starter.kill()
    starter.wait()

    wait_until(lambda: not processes.exists(supervisor_pid))
    assert (short_path / "data" / MARKER).exists()
