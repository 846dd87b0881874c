"""The arbiter's decisions, with fake processes and time."""

from __future__ import annotations

import errno
import os
import signal

import pytest

from kbroker.ipc.process_table import (
    HANDED_OVER,
    HEARTBEAT_NS,
    LEAVE,
    PID,
    READY,
    STATE,
    Address,
    ProcessKind,
    ProcessTable,
    region_size,
)
from kbroker.supervisor.arbiter import ABORT_GRACE_S, STALLED_AFTER_S, Arbiter
from kbroker.supervisor.child import (
    CANNOT_START_MAX,
    SERVED_REST_S,
    STABLE_AFTER_S,
    RestartPolicy,
)

pytestmark = pytest.mark.unit

CONTROLLER = Address(ProcessKind.CONTROLLER, 0)
IO = Address(ProcessKind.IO_WORKER, 0)
NETWORK = Address(ProcessKind.NETWORK, 0)
ACCEPTOR = Address(ProcessKind.ACCEPTOR, 0)
EXPORTER = Address(ProcessKind.EXPORTER, 0)
ADDRESSES = [CONTROLLER, IO, NETWORK, ACCEPTOR, EXPORTER]


class FakeSystem:
    """Processes as entries of a dict; time passes only while something waits."""

    def __init__(self) -> None:
        self.time = 100.0
        self.alive: dict[int, Address] = {}
        self.spawned: list[tuple[Address, int]] = []
        self.killed: list[tuple[Address, int]] = []
        self.ended: list[tuple[int, int]] = []
        self.signals: list[int] = []
        self.waits: list[float] = []
        self.stubborn: set[Address] = set()  # ignore SIGTERM
        self.exit_codes: dict[Address, int] = {}
        self.spawn_error: OSError | None = None
        self._next_pid = 1000

    def now(self) -> float:
        return self.time

    def wait_signals(self, timeout_s: float) -> list[int]:
        self.waits.append(timeout_s)
        self.time += timeout_s
        arrived, self.signals = self.signals, []
        return arrived

    def spawn(self, address: Address, incarnation: int) -> int:
        if self.spawn_error is not None:
            raise self.spawn_error
        self._next_pid += 1
        self.alive[self._next_pid] = address
        self.spawned.append((address, incarnation))
        return self._next_pid

    def reap(self) -> list[tuple[int, int]]:
        ended, self.ended = self.ended, []
        return ended

    def kill(self, pid: int, number: int) -> None:
        address = self.alive[pid]
        self.killed.append((address, number))
        if number == signal.SIGKILL:
            self.end(address, -signal.SIGKILL)
        elif number == signal.SIGTERM and address not in self.stubborn:
            self.end(address, self.exit_codes.get(address, 0))

    def stubborn_until(self, address: Address, ends_at: float) -> None:
        """The process ignores SIGTERM and ends at that time, with 0."""
        self.stubborn.add(address)
        wait = self.wait_signals

        def wait_signals(timeout_s: float) -> list[int]:
            if address in self.alive.values() and self.time >= ends_at:
                self.end(address, 0)
            return wait(timeout_s)

        self.wait_signals = wait_signals  # type: ignore[method-assign]

    def end(self, address: Address, code: int) -> None:
        pid = next(pid for pid, known in self.alive.items() if known == address)
        del self.alive[pid]
        self.ended.append((pid, code))


class Setup:
    """An arbiter on fakes, started."""

    def __init__(
        self, stop_budget_s: float = 1.5, leave_s: float = 0.0, session_grace_s: float = 0.0
    ) -> None:
        self.system = FakeSystem()
        self.table = ProcessTable(bytearray(region_size(len(ADDRESSES))), ADDRESSES)  # type: ignore[arg-type]
        self.ends: list[tuple[Address, int]] = []
        self.restarts = 0
        self.arbiter = Arbiter(
            ADDRESSES,
            self.table,
            self.system,
            policy=RestartPolicy(0.1, 10.0, jitter=lambda low, high: 1.0),
            stop_budget_s=stop_budget_s,
            leave_s=leave_s,
            session_grace_s=session_grace_s,
            on_restart=self.on_restart,
            on_end=lambda address, incarnation: self.ends.append((address, incarnation)),
        )
        for address in ADDRESSES:
            self.table.begin_start(address)
        self.arbiter.start_missing()
        self.system.spawned.clear()
        self.beat()

    def on_restart(self) -> None:
        self.restarts += 1

    def beat(self) -> None:
        for address in ADDRESSES:
            self.table.set(address, STATE, READY)
            self.table.set(address, HEARTBEAT_NS, int(self.system.time * 1e9))

    def child(self, address: Address):  # type: ignore[no-untyped-def]
        return next(child for child in self.arbiter.children if child.address == address)


@pytest.fixture
def setup() -> Setup:
    return Setup()


def test_children_start_in_order_with_first_incarnation() -> None:
    system = FakeSystem()
    table = ProcessTable(bytearray(region_size(len(ADDRESSES))), ADDRESSES)  # type: ignore[arg-type]
    arbiter = Arbiter(ADDRESSES, table, system, policy=RestartPolicy(), stop_budget_s=1)
    system.signals = [signal.SIGTERM]

    arbiter.run()

    assert system.spawned == [(address, 1) for address in ADDRESSES]


def test_crashed_child_gets_a_new_incarnation_before_it_starts(setup: Setup) -> None:
    """Others must drop messages of the dead one even before it is replaced."""
    setup.system.end(IO, -signal.SIGSEGV)

    setup.arbiter.reap()

    assert setup.table.incarnation(IO) == 2
    assert not setup.table.is_ready(IO)
    assert setup.table.get(IO, PID) == 0
    assert setup.ends == [(IO, 1)]
    setup.arbiter.start_missing()
    assert setup.system.spawned == [(IO, 2)]
    assert setup.restarts == 1


def test_repeated_crashes_back_off_up_to_the_maximum(setup: Setup) -> None:
    delays = []
    for _ in range(10):
        setup.system.end(IO, 1)
        setup.arbiter.reap()
        delays.append(round(setup.child(IO).start_at - setup.system.time, 3))
        setup.system.time = setup.child(IO).start_at
        setup.arbiter.start_missing()

    assert delays == [0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10, 10]


def test_child_for_which_there_is_no_room_is_tried_again_while_the_others_continue(
    setup: Setup, caplog: pytest.LogCaptureFixture
) -> None:
    """A limit of processes, or memory: the supervisor exited, and all others with it."""
    setup.system.end(IO, -signal.SIGKILL)
    setup.system.spawn_error = OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    setup.arbiter.reap()
    delays = []
    for _ in range(4):
        setup.arbiter.start_missing()
        delays.append(round(setup.child(IO).start_at - setup.system.time, 3))
        setup.system.time = setup.child(IO).start_at

    setup.system.spawn_error = None
    setup.arbiter.start_missing()

    assert delays == [0.1, 0.2, 0.4, 0.8]
    assert setup.system.spawned == [(IO, 2)]
    assert not setup.arbiter._stop_requested
    assert "was killed by SIGKILL (by the kernel, if memory ran out" in caplog.text
    assert "cannot start io-0: Resource temporarily unavailable; raise" in caplog.text


def crash(setup: Setup, times: int) -> None:
    """Let a child crash again and again before it serves."""
    for _ in range(times):
        setup.system.end(IO, 1)
        setup.arbiter.reap()
        setup.system.time = setup.child(IO).start_at
        setup.arbiter.start_missing()


def rest_after_serving(setup: Setup, seconds: float) -> float:
    """The delay before the restart of a child that served for this long."""
    setup.beat()
    setup.arbiter.note_serving()
    setup.system.time += seconds
    setup.system.end(IO, -signal.SIGKILL)
    setup.arbiter.reap()
    rest: float = setup.child(IO).start_at - setup.system.time
    return round(rest, 3)


def test_child_that_served_restarts_at_once_again(setup: Setup) -> None:
    crash(setup, times=3)

    assert rest_after_serving(setup, STABLE_AFTER_S) == 0


def test_child_that_only_recovered_for_long_is_in_a_crash_loop_all_the_same(setup: Setup) -> None:
    """Reading its logs takes minutes, and it crashes on their end."""
    crash(setup, times=3)
    setup.system.time += 10 * STABLE_AFTER_S
    setup.system.end(IO, 1)

    setup.arbiter.reap()

    assert round(setup.child(IO).start_at - setup.system.time, 3) == 0.4


def test_child_that_served_rests_for_a_second_at_most(setup: Setup) -> None:
    """Killed repeatedly, it was away for as long as it had served, up to 12 seconds."""
    crash(setup, times=20)

    rests = []
    for served_s in (5, 0.01, 2):
        rests.append(rest_after_serving(setup, served_s))
        setup.system.time = setup.child(IO).start_at
        setup.arbiter.start_missing()

    assert rests == [SERVED_REST_S] * 3


def test_child_killed_before_it_serves_again_is_not_in_a_crash_loop(setup: Setup) -> None:
    """Of two kills in a row, the second came before it served: it was away for ten seconds."""
    crash(setup, times=20)
    rest_after_serving(setup, 5)
    setup.system.time = setup.child(IO).start_at
    setup.arbiter.start_missing()

    rests = []
    for _ in range(4):
        setup.system.end(IO, -signal.SIGKILL)
        setup.arbiter.reap()
        rests.append(round(setup.child(IO).start_at - setup.system.time, 3))
        setup.system.time = setup.child(IO).start_at
        setup.arbiter.start_missing()

    assert rests == [0.1, 0.2, 0.4, 0.8]


def test_bad_configuration_stops_the_broker_at_once(setup: Setup) -> None:
    setup.system.end(IO, 2)

    setup.arbiter.turn()
    setup.arbiter.start_missing()

    assert setup.arbiter._stop_requested
    assert setup.arbiter._exit_code == 2


def test_child_that_cannot_start_stops_the_broker_after_some_tries(setup: Setup) -> None:
    for _ in range(CANNOT_START_MAX - 1):
        setup.system.end(IO, 3)
        setup.arbiter.reap()
        assert not setup.arbiter._stop_requested
        setup.system.time = setup.child(IO).start_at
        setup.arbiter.start_missing()
    setup.system.end(IO, 3)

    setup.arbiter.reap()

    assert setup.arbiter._stop_requested
    assert setup.arbiter._exit_code == 3


def test_other_exit_in_between_starts_the_count_again(setup: Setup) -> None:
    for code in (3, 3, 3, 3, 1, 3, 3, 3, 3):
        setup.system.end(IO, code)
        setup.arbiter.reap()
        setup.system.time = setup.child(IO).start_at
        setup.arbiter.start_missing()

    assert not setup.arbiter._stop_requested


def turns(setup: Setup, seconds: float) -> None:
    end = setup.system.time + seconds
    while setup.system.time < end:
        setup.arbiter.turn()


def test_stalled_child_is_aborted_then_killed_then_restarted(setup: Setup) -> None:
    turns(setup, 1)
    setup.beat()
    stalled_at = setup.system.time
    while not setup.system.killed:
        setup.arbiter.turn()
        for address in ADDRESSES:
            if address != IO:
                setup.table.set(address, HEARTBEAT_NS, int(setup.system.time * 1e9))
    assert setup.system.killed == [(IO, signal.SIGABRT)]
    assert STALLED_AFTER_S < setup.system.time - stalled_at < STALLED_AFTER_S + 3

    turns(setup, ABORT_GRACE_S + 0.1)

    assert setup.system.killed == [(IO, signal.SIGABRT), (IO, signal.SIGKILL)]
    turns(setup, 1)
    assert setup.system.spawned == [(IO, 2)]


def test_supervisor_that_was_stopped_itself_gives_the_others_time(setup: Setup) -> None:
    """After SIGSTOP and SIGCONT of the whole group every heartbeat is old, but nothing is stuck."""
    turns(setup, 1)
    setup.system.time += 1000

    turns(setup, 5)

    assert setup.system.killed == []


def test_child_in_recovery_is_given_longer(setup: Setup) -> None:
    setup.table.begin_start(IO)
    turns(setup, 1)
    for _ in range(int(STALLED_AFTER_S) + 20):
        setup.arbiter.turn()
        for address in ADDRESSES:
            if address != IO:
                setup.table.set(address, HEARTBEAT_NS, int(setup.system.time * 1e9))

    assert setup.system.killed == []


def test_hangup_goes_to_the_controller(setup: Setup) -> None:
    setup.arbiter.on_signal(signal.SIGHUP)

    assert setup.system.killed == [(CONTROLLER, signal.SIGHUP)]


def test_shutdown_goes_from_acceptor_to_exporter(setup: Setup) -> None:
    setup.arbiter.shutdown()

    order = [ACCEPTOR, NETWORK, IO, CONTROLLER, EXPORTER]
    assert setup.system.killed == [(address, signal.SIGTERM) for address in order]
    assert setup.arbiter.stopped_cleanly(ProcessKind.IO_WORKER)
    assert setup.system.spawned == []


def test_shutdown_lets_io_workers_finish_within_the_wait_for_the_killed(setup: Setup) -> None:
    """Killed in the sync before the clean shutdown marker, they would not end sooner."""
    system = setup.system
    ends_at = system.time + 1.55
    system.stubborn_until(IO, ends_at)

    setup.arbiter.shutdown()

    assert setup.arbiter.stopped_cleanly(ProcessKind.IO_WORKER)
    assert signal.SIGKILL not in [number for _, number in system.killed]
    assert system.time <= ends_at + 0.45


def test_shutdown_lets_the_controller_process_end_its_session_after_slow_io_workers() -> None:
    """Killed, it would leave a broker behind that the others count as live."""
    setup = Setup(session_grace_s=1.2)
    system = setup.system
    system.stubborn_until(IO, system.time + 1.6)
    ends_at = system.time + 2.7
    system.stubborn_until(CONTROLLER, ends_at)

    setup.arbiter.shutdown()

    assert (CONTROLLER, signal.SIGKILL) not in system.killed
    assert system.time <= ends_at + 0.2


def test_shutdown_kills_a_controller_process_that_cannot_end_its_session() -> None:
    setup = Setup(session_grace_s=1.2)
    setup.system.stubborn = {CONTROLLER}
    started_at = setup.system.time

    setup.arbiter.shutdown()

    assert (CONTROLLER, signal.SIGKILL) in setup.system.killed
    assert setup.system.time - started_at <= 3.0


def test_stuck_network_process_leaves_io_workers_time_for_their_logs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    setup = Setup(stop_budget_s=30)
    setup.system.stubborn = {NETWORK}
    setup.system.stubborn_until(IO, setup.system.time + 25)

    setup.arbiter.shutdown()

    assert setup.arbiter.stopped_cleanly(ProcessKind.IO_WORKER)
    assert "network-0 did not stop in time (shutdown.timeout.ms); killing it" in caplog.text
    assert "still waiting for io-0 to stop; killing it in" in caplog.text


def test_stop_that_loses_the_clean_marker_says_so(caplog: pytest.LogCaptureFixture) -> None:
    setup = Setup(stop_budget_s=30)
    setup.system.stubborn = {IO}

    setup.arbiter.shutdown()

    lines = [record.getMessage() for record in caplog.records if "io-0" in record.getMessage()]
    assert len(lines) == 2
    assert all(line.endswith("the next start recovers the logs") for line in lines)
    assert "io-0 was killed by SIGKILL" in setup.arbiter.unclean(ProcessKind.IO_WORKER)


def test_shutdown_kills_who_does_not_leave_and_keeps_the_budget(setup: Setup) -> None:
    setup.system.stubborn = {NETWORK, IO}
    started_at = setup.system.time

    setup.arbiter.shutdown()

    assert setup.system.time - started_at <= 2.0
    assert (IO, signal.SIGKILL) in setup.system.killed
    assert not setup.system.alive
    assert not setup.arbiter.stopped_cleanly(ProcessKind.IO_WORKER)
    assert setup.arbiter.stopped_cleanly(ProcessKind.CONTROLLER)


def test_io_worker_that_fails_while_stopping_is_not_clean(setup: Setup) -> None:
    setup.system.exit_codes[IO] = 1

    setup.arbiter.shutdown()

    assert not setup.arbiter.stopped_cleanly(ProcessKind.IO_WORKER)


def test_io_worker_that_waits_for_its_restart_is_not_clean(setup: Setup) -> None:
    setup.system.end(IO, -signal.SIGKILL)
    setup.arbiter.reap()

    setup.arbiter.shutdown()

    assert not setup.arbiter.stopped_cleanly(ProcessKind.IO_WORKER)


def test_unknown_child_is_reaped_without_a_trace(setup: Setup) -> None:
    setup.system.ended.append((4, 0))

    setup.arbiter.reap()

    assert setup.ends == []


class Leaving(FakeSystem):
    """The controller process takes its time to hand over."""

    def __init__(self, takes_s: float) -> None:
        super().__init__()
        self.takes_s = takes_s
        self.asked_at = float("inf")
        self.on_wait = lambda: None

    def kill(self, pid: int, number: int) -> None:
        if number == LEAVE:
            assert self.alive[pid] == CONTROLLER
            self.asked_at = self.time
        super().kill(pid, number)

    def wait_signals(self, timeout_s: float) -> list[int]:
        arrived = super().wait_signals(timeout_s)
        self.on_wait()
        return arrived


def leaving(setup: Setup, system: Leaving) -> Setup:
    """The same, with that system; asked to stop."""
    system.alive, system._next_pid = setup.system.alive, setup.system._next_pid
    setup.system = setup.arbiter._system = system

    def hand_over() -> None:
        if system.time >= system.asked_at + system.takes_s:
            setup.table.set(CONTROLLER, HANDED_OVER, 1)

    system.on_wait = hand_over
    setup.arbiter.on_signal(signal.SIGTERM)
    return setup


def test_broker_hands_over_while_all_serve_and_then_stops() -> None:
    setup = leaving(Setup(leave_s=60), Leaving(takes_s=7))

    setup.arbiter.leave()

    assert setup.system.killed == [(CONTROLLER, LEAVE)]
    assert 107 <= setup.system.time < 107.1


def test_shutdown_does_not_wait_for_a_controlled_one_forever(
    caplog: pytest.LogCaptureFixture,
) -> None:
    setup = leaving(Setup(leave_s=60), Leaving(takes_s=1000))

    setup.arbiter.leave()

    assert 160 <= setup.system.time < 160.1
    assert "before the controlled shutdown has ended" in caplog.text


def test_second_signal_ends_a_controlled_shutdown() -> None:
    setup = leaving(Setup(leave_s=60), Leaving(takes_s=1000))
    setup.system.signals = [signal.SIGTERM]

    setup.arbiter.leave()

    assert setup.system.time < 100.1


def test_end_of_the_controller_process_ends_a_controlled_shutdown() -> None:
    system = Leaving(takes_s=1000)
    setup = leaving(Setup(leave_s=60), system)
    system.on_wait = lambda: system.end(CONTROLLER, -signal.SIGKILL)

    setup.arbiter.leave()

    assert setup.system.time < 100.1


def test_controller_process_that_does_not_serve_is_not_asked() -> None:
    setup = leaving(Setup(leave_s=60), Leaving(takes_s=1000))
    setup.table.begin_start(CONTROLLER)

    setup.arbiter.leave()

    assert setup.system.killed == []


@pytest.mark.parametrize(("leave_s", "asked"), [(60, [(CONTROLLER, LEAVE)]), (0, [])])
def test_only_a_broker_of_a_cluster_hands_over(leave_s: float, asked: object) -> None:
    system = Leaving(takes_s=0)
    setup = leaving(Setup(leave_s=leave_s), system)
    setup.arbiter._stop_requested = False
    hand_over = system.on_wait
    system.signals = [signal.SIGTERM]
    # All serve when the signal comes.
    system.on_wait = lambda: setup.beat() or hand_over()

    setup.arbiter.run()

    assert [row for row in setup.system.killed if row[1] == LEAVE] == asked
    assert setup.arbiter.stopped_cleanly(ProcessKind.IO_WORKER)
