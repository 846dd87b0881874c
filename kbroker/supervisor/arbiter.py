"""The supervisor's loop: drain signals, reap, check heartbeats, stop and start children.

Everything that happens to a child is decided here, in one place and one order; signal handlers only
enqueue. Processes and time are reached through ``System``, so the decisions are tested without
either.

A shutdown begins with a controlled one where that is wanted: the controller process has other
brokers lead what this one leads, while all processes serve. A second signal ends it.

It follows the steps of ``ipc.process_kinds``: a process stops before those it depends on, and
the exporter is last. Each step has its share of the budget; what has not exited by then is killed.
Io workers, whose end decides on the clean-shutdown marker, may use part of the time that is
kept for the killed. The controller process of a cluster has a grace of its own: killed before it
has ended the session, it leaves a broker behind that the others count as live until the session
expires.
"""

from __future__ import annotations

import errno
import faulthandler
import logging
import signal
from collections.abc import Callable, Sequence
from typing import Protocol

from kbroker.errors import EXIT_BAD_CONFIG, EXIT_CANNOT_START, EXIT_DONE
from kbroker.ipc.process_kinds import STOP_ORDER
from kbroker.ipc.process_table import (
    CONTROLLER,
    HANDED_OVER,
    HEARTBEAT_NS,
    LEAVE,
    PID,
    Address,
    ProcessKind,
    ProcessTable,
)
from kbroker.supervisor.child import (
    Child,
    RestartPolicy,
    Verdict,
)
from kbroker.supervisor.service_manager import ServiceManager

logger = logging.getLogger(__name__)

STOP_RESERVE_S = 0.1  # kept for each step that follows
KILL_WAIT_S = 0.5
# The part of the budget that the processes before io workers may use. These have the rest, as there
# is no clean-shutdown marker without them.
BEFORE_LOGS_SHARE = 0.5
# How long a step takes until the log says what it waits for.
STOP_SAID_AFTER_S = 5.0
# The share of it that io workers may use for their logs: killed in a sync, they do not end before
# it.
LOGS_GRACE_S = 0.3

HEARTBEAT_CHECK_S = 1.0
STALLED_AFTER_S = 30.0  # for a process that serves; ABRT and a stack dump follow
STALLED_STARTING_AFTER_S = (
    600.0  # recovery of a large log directory happens before the first loop turn
)
ABORT_GRACE_S = 2.0
POLL_WHILE_STARTING_S = 0.01
POLL_WHILE_LEAVING_S = 0.01
# The resource that is exhausted when a fork fails, and the remedy.
NO_ROOM = {
    errno.EAGAIN: "raise the limit on processes (ulimit -u, or TasksMax= in a systemd unit)",
    errno.ENOMEM: "free memory",
}
START_WATCH_S = 5.0  # BOUND: how long the ready line is waited for at that pace


class System(Protocol):
    """The system calls of the arbiter."""

    def now(self) -> float: ...

    def wait_signals(self, timeout_s: float) -> list[int]: ...

    def spawn(self, address: Address, incarnation: int) -> int:
        """Fork; returns the pid. Raises OSError when the system has no room for a process."""

    def reap(self) -> list[tuple[int, int]]:
        """(pid, exit code) of children that ended; negative codes are signals."""

    def kill(self, pid: int, number: int) -> None: ...


class Arbiter:
    """Runs the children from first fork to last exit."""

    def __init__(
        self,
        addresses: Sequence[Address],
        processes: ProcessTable,
        system: System,
        *,
        policy: RestartPolicy,
        stop_budget_s: float,
        leave_s: float = 0.0,
        session_grace_s: float = 0.0,
        on_restart: Callable[[], None] = lambda: None,
        on_end: Callable[[Address, int], None] = lambda address, incarnation: None,
        manager: ServiceManager | None = None,
    ) -> None:
        """addresses: in start order. stop_budget_s: time for an orderly stop of all. leave_s: time
        for a controlled shutdown before that; 0: none. session_grace_s: how much longer than its
        share the controller process may take to end its session. on_end: called with every process
        that ended and its incarnation, before the process table is updated; on_restart: called for
        each restart. manager: the service manager; None without one.
        """
        self._manager = ServiceManager({}) if manager is None else manager
        self.children = [Child(address, policy) for address in addresses]
        self._by_pid: dict[int, Child] = {}
        self._processes = processes
        self._system = system
        self._stop_budget_s = stop_budget_s
        self._leave_s = leave_s
        self._grace_s = {
            ProcessKind.IO_WORKER: LOGS_GRACE_S,
            ProcessKind.CONTROLLER: session_grace_s,
        }
        self._on_restart = on_restart
        self._on_end = on_end
        self._stop_requested = False
        self._is_urgent = False  # the second request to stop
        self._exit_code = EXIT_DONE
        self._started_at = 0.0
        self._announced_ready = False
        self._last_turn = 0.0
        self._next_heartbeat_check = 0.0

    # -- the loop

    def run(self) -> int:
        """Run until told to stop; returns the exit code of the broker.

        ``stopped_cleanly`` is valid afterwards.
        """
        self._started_at = self._last_turn = self._system.now()
        for child in self.children:
            self._processes.begin_start(child.address)
        self.start_missing()
        while not self._stop_requested:
            self.turn()
        self._manager.stopping()
        if self._leave_s and self._exit_code == EXIT_DONE:
            self.leave()
        self.shutdown()
        return self._exit_code

    def turn(self) -> None:
        """One turn of the loop."""
        for number in self._system.wait_signals(self._wait_s()):
            self.on_signal(number)
        self.reap()
        if self._stop_requested:
            return
        self.check_heartbeats()
        self.note_serving()
        self.start_missing()
        if not self._announced_ready and self.all_ready():
            self._announced_ready = True
            elapsed_ms = (self._system.now() - self._started_at) * 1000
            logger.info("all %d processes are ready after %d ms", len(self.children), elapsed_ms)
            self._manager.ready(f"{len(self.children)} processes serve")
        self._manager.alive(self._system.now())

    def _wait_s(self) -> float:
        now = self._system.now()
        wake_at = now + HEARTBEAT_CHECK_S
        if (due_s := self._manager.due_s()) is not None:
            wake_at = min(wake_at, due_s)
        if not self._announced_ready and now - self._started_at < START_WATCH_S:
            wake_at = now + POLL_WHILE_STARTING_S
        for child in self.children:
            if child.pid == 0:
                wake_at = min(wake_at, child.start_at)
            elif child.abort_deadline is not None:
                wake_at = min(wake_at, child.abort_deadline)
        return max(0.0, wake_at - now)

    def on_signal(self, number: int) -> None:
        """Take one signal."""
        if number in (signal.SIGTERM, signal.SIGINT):
            if not self._stop_requested:
                logger.info("%s: stopping", signal.Signals(number).name)
            self._is_urgent = self._stop_requested
            self._stop_requested = True
        elif number == signal.SIGHUP:
            logger.info("SIGHUP: the controller reloads the configuration")
            for child in self.children:
                if child.address.kind == ProcessKind.CONTROLLER and child.pid:
                    self._system.kill(child.pid, signal.SIGHUP)
        elif number == signal.SIGQUIT:
            # As a JVM does: the sender wants to know what the broker is doing, not to end it.
            logger.info("SIGQUIT: every process prints its stacks")
            faulthandler.dump_traceback()
            for child in self.children:
                if child.pid:
                    self._system.kill(child.pid, signal.SIGQUIT)

    def all_ready(self) -> bool:
        """Whether every process serves."""
        return all(child.pid and self._processes.is_ready(child.address) for child in self.children)

    def note_serving(self) -> None:
        """Note when children begin to serve: how long they do decides their restart delay."""
        for child in self.children:
            if child.pid and self._processes.is_ready(child.address):
                child.on_serving(self._system.now())

    def reap(self) -> None:
        """Collect every child that has exited, and decide how to react."""
        for pid, code in self._system.reap():
            child = self._by_pid.pop(pid, None)
            if child is None:
                continue  # a grandchild that was left to this process
            address = child.address
            if self._processes.is_ready(address):
                child.on_serving(self._system.now())
            was_aborted = child.abort_deadline is not None
            verdict = child.on_ended(code, self._system.now())
            self._on_end(address, self._processes.incarnation(address))
            self._processes.set(address, PID, 0)
            if self._stop_requested:
                continue
            # From here on messages of the old incarnation are dropped, and calls to it fail at
            # once.
            self._processes.begin_start(address)
            if verdict is Verdict.RESTART:
                delay_s = max(0.0, child.start_at - self._system.now())
                level = logging.INFO if code == EXIT_DONE else logging.ERROR
                what = "stalled and was aborted" if was_aborted else describe_exit(code)
                logger.log(level, "%s %s; restart in %.1f s", address.title, what, delay_s)
                self._on_restart()
                continue
            self._exit_code = (
                EXIT_BAD_CONFIG if verdict is Verdict.STOP_BAD_CONFIG else EXIT_CANNOT_START
            )
            logger.error(
                "%s %s: %s", address.title, describe_exit(code), verdict.value,
                extra={"event": "arbiter.gives-up"},
            )  # fmt: skip
            self._stop_requested = True

    def check_heartbeats(self) -> None:
        """Stop children whose loop has not turned: ABRT, which dumps their stacks, then KILL."""
        now = self._system.now()
        since_last_turn = now - self._last_turn
        self._last_turn = now
        for child in self.children:
            if child.abort_deadline is not None and now >= child.abort_deadline:
                logger.error("%s ignored SIGABRT; killing it", child.address.title)
                self._system.kill(child.pid, signal.SIGKILL)
                child.abort_deadline = now + ABORT_GRACE_S
        if since_last_turn > 2 * HEARTBEAT_CHECK_S:
            # This process was stopped itself (SIGSTOP, a starved machine); so were the others, give
            # them time.
            self._next_heartbeat_check = now + STALLED_AFTER_S / 2
        if now < self._next_heartbeat_check:
            return
        self._next_heartbeat_check = now + HEARTBEAT_CHECK_S
        for child in self.children:
            if child.pid == 0 or child.abort_deadline is not None:
                continue
            age_s = now - self._processes.get(child.address, HEARTBEAT_NS) / 1e9
            ready = self._processes.is_ready(child.address)
            if age_s > (STALLED_AFTER_S if ready else STALLED_STARTING_AFTER_S):
                logger.error(
                    "%s has been stuck for %.0f s; aborting it", child.address.title, age_s
                )
                self._system.kill(child.pid, signal.SIGABRT)
                child.abort_deadline = now + ABORT_GRACE_S

    def start_missing(self) -> None:
        """Fork every child that is due, in start order."""
        for child in self.children:
            now = self._system.now()
            if child.pid == 0 and child.start_at <= now:
                self._processes.heartbeat(child.address)
                incarnation = self._processes.incarnation(child.address)
                try:
                    pid = self._system.spawn(child.address, incarnation)
                except OSError as error:
                    self._on_no_room(child, error)
                    continue
                self._processes.started(child.address, pid)
                self._by_pid[pid] = child
                child.on_started(pid)
                logger.debug("started %s as pid %d", child.address.title, pid)

    def _on_no_room(self, child: Child, error: OSError) -> None:
        """No more processes can be started now; the others keep running. Try again later."""
        now = self._system.now()
        child.on_not_started(now)
        logger.error(
            "cannot start %s: %s; %s; next attempt in %.1f s",
            child.address.title,
            error.strerror,
            NO_ROOM.get(error.errno or 0, "the other processes keep running"),
            child.start_at - now,
        )

    # -- the end

    def leave(self) -> None:
        """Make the controller process hand over leadership, and wait until it has."""
        child = next((c for c in self.children if c.address == CONTROLLER), None)
        if child is None or not child.pid or not self._processes.is_ready(CONTROLLER):
            return
        self._system.kill(child.pid, LEAVE)
        deadline = self._system.now() + self._leave_s
        while child.pid and not self._processes.get(CONTROLLER, HANDED_OVER):
            if self._is_urgent or self._system.now() >= deadline:
                logger.warning("stopping before the controlled shutdown has ended")
                return
            for number in self._system.wait_signals(POLL_WHILE_LEAVING_S):
                self.on_signal(number)
            self.reap()

    def shutdown(self) -> None:
        """Stop every child, dependants first, within the budget."""
        self._stop_requested = True
        started_at = self._system.now()
        deadline = started_at + self._stop_budget_s
        for position, kind in enumerate(STOP_ORDER):
            group = [child for child in self.children if child.address.kind == kind and child.pid]
            if not group:
                continue
            step_started_at = self._system.now()
            steps_left = len(STOP_ORDER) - 1 - position
            # Whatever earlier steps took, each has its reserve.
            due = max(deadline - STOP_RESERVE_S * steps_left, step_started_at + STOP_RESERVE_S)
            if position < STOP_ORDER.index(ProcessKind.IO_WORKER):
                due = min(due, started_at + self._stop_budget_s * BEFORE_LOGS_SHARE)
            self._stop_group(group, due, self._grace_s.get(kind, 0.0))
            elapsed_ms = (self._system.now() - step_started_at) * 1000
            logger.debug("stopped %d %s in %d ms", len(group), kind.name.lower(), elapsed_ms)
        elapsed_ms = (self._system.now() - started_at) * 1000
        logger.info("all processes have stopped after %d ms", elapsed_ms)

    def _stop_group(self, group: list[Child], deadline: float, grace_s: float) -> None:
        deadline += grace_s
        for child in group:
            self._system.kill(child.pid, signal.SIGTERM)
        say_at = self._system.now() + STOP_SAID_AFTER_S
        while any(child.pid for child in group):
            left_s = deadline - self._system.now()
            if left_s <= 0:
                break
            if self._system.now() >= say_at:
                say_at = deadline
                titles = ", ".join(child.address.title for child in group if child.pid)
                text = "still waiting for %s to stop; killing it in %d s%s"
                logger.warning(text, titles, left_s, consequence(group))
            self._system.wait_signals(min(left_s, 0.05))
            self.reap()
        for child in group:
            if child.pid:
                text = "%s did not stop in time (shutdown.timeout.ms); killing it%s"
                logger.warning(text, child.address.title, consequence(group))
                self._system.kill(child.pid, signal.SIGKILL)
        # A process in an uninterruptible system call dies when that returns; its locks are held
        # until then.
        give_up_at = self._system.now() + max(KILL_WAIT_S - grace_s, STOP_RESERVE_S)
        while any(child.pid for child in group) and self._system.now() < give_up_at:
            self._system.wait_signals(0.05)
            self.reap()

    def stopped_cleanly(self, kind: ProcessKind) -> bool:
        """Whether every process of ``kind`` ran until it was told to stop, then exited with 0."""
        return not self.unclean(kind)

    def unclean(self, kind: ProcessKind) -> str:
        """The processes of ``kind`` that did not, and how they ended; empty if there are none."""
        return ", ".join(
            f"{child.address.title} {describe_exit(child.exit_code)}"
            if child.exit_code is not None
            else f"{child.address.title} does not end"
            for child in self.children
            if child.address.kind == kind and child.exit_code != EXIT_DONE
        )


def consequence(group: Sequence[Child]) -> str:
    """What the kill of these costs, for the log."""
    if group[0].address.kind != ProcessKind.IO_WORKER:
        return ""
    return ": there is no clean-shutdown marker then, and the next start recovers the logs"


def describe_exit(code: int) -> str:
    """``exited with 1``, ``was killed by SIGSEGV``."""
    if code >= 0:
        return f"exited with {code}"
    if code == -signal.SIGKILL:
        return "was killed by SIGKILL (by the kernel, if memory ran out: see dmesg)"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"was killed by {name}"
