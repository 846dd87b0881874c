"""A process that has imported a broker, and forks for each requested broker.

Imports are most of what a start costs, and tests start brokers again and again. So the first
``Broker`` of a process starts a template, ``python -m kbroker.testing.template``, which imports
what ``kbroker-supervisor`` and its processes import, and then forks for each broker: the fork runs
the ``main`` of that command with arguments, log and working directory of its own.
Whatever else a process inherits, such as environment and limits, is that of the template; where it
is not what the template began with, there is another template.

A template ends with the process that started it, and its brokers end with it (they run with
``--exit-with-parent``).
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NoReturn

from kbroker.descriptors import readable

# BOUND: size of a request, which is one datagram.
REQUEST_BYTES_MAX = 200_000
# BOUND: each uses the memory of an idle process. Further brokers are started as usual.
TEMPLATES_MAX = 3
# When the process that started a template exits, its socket closes, unless a fork still has it.
PARENT_CHECK_S = 1.0
CONTROL_FD = 0
EXIT_CRASH = 1
LIMITS = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]


class NoTemplate(Exception):
    """No template can start this broker; it must be started as an ordinary program."""


class ForkedProcess:
    """A process forked by a template, with the part of ``subprocess.Popen`` that ``Broker``
    needs.
    """

    def __init__(self, life: socket.socket) -> None:
        """life: the socket on which the template sends the pid and, at the end, the exit code."""
        self._life = life
        self.returncode: int | None = None
        pid = self._hear()
        if pid is None:
            life.close()
            raise NoTemplate
        self.pid = pid

    def _hear(self) -> int | None:
        said = self._life.recv(32)
        return int(said) if said else None

    def poll(self) -> int | None:
        """The exit code; None while it runs."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code. Raises subprocess.TimeoutExpired."""
        if self.returncode is None:
            self._life.settimeout(timeout)
            try:
                code = self._hear()
            except (BlockingIOError, TimeoutError):
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0) from None
            # A killed template leaves no result.
            self.returncode = -signal.SIGKILL if code is None else code
            self._life.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            # The process may be gone before its exit code is here.
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Template:
    """The template as the process that started it sees it."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._started_by = os.getpid()
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "kbroker.testing.template"],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,  # an ordinary start reports failed imports
                env=environment,
            )

    def fork(self, arguments: Sequence[str], log_fd: int) -> ForkedProcess:
        """A process that runs the command with these arguments. Raises NoTemplate."""
        request = json.dumps([os.getcwd(), *arguments]).encode()
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                socket.send_fds(self._control, [request], [log_fd, theirs.fileno()])
            except OSError as error:  # it has ended, or the request is too long
                mine.close()
                raise NoTemplate from error
        return ForkedProcess(mine)

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def close(self) -> None:
        """Let it end. Its brokers, if there are any, stop then."""
        self._control.close()
        if self._started_by == os.getpid():
            self._process.wait()


_lock = threading.Lock()
_templates: dict[object, Template] = {}


def fork(arguments: Sequence[str], environment: Mapping[str, str], log_fd: int) -> ForkedProcess:
    """Run ``kbroker-supervisor`` in a fork of a template. Raises NoTemplate."""
    began_with = _inherited(environment)
    with _lock:
        if began_with not in _templates:
            if len(_templates) == TEMPLATES_MAX:
                raise NoTemplate
            _templates[began_with] = Template(environment)
        template = _templates[began_with]
    try:
        return template.fork(arguments, log_fd)
    except NoTemplate:
        with _lock:
            if template.has_ended() and _templates.get(began_with) is template:
                _templates.pop(began_with).close()
        raise


def _inherited(environment: Mapping[str, str]) -> object:
    """What a process inherits from its parent, and the parent's pid."""
    return (
        os.getpid(),
        # pytest says there which test runs.
        frozenset(entry for entry in environment.items() if entry[0] != "PYTEST_CURRENT_TEST"),
        tuple(map(resource.getrlimit, LIMITS)),
        frozenset(os.sched_getaffinity(0)),
        (os.getresuid(), os.getresgid(), os.getpgid(0)),
    )


@atexit.register
def _close_all() -> None:
    for template in _templates.values():
        template.close()


# -- in the template


class _Children:
    """Brokers by the file descriptors that signal their exit."""

    def __init__(self) -> None:
        self._lives: dict[int, tuple[int, socket.socket]] = {}

    @property
    def pidfds(self) -> list[int]:
        return list(self._lives)

    def add(self, pid: int, life: socket.socket) -> None:
        self._lives[os.pidfd_open(pid)] = pid, life
        _say(life, pid)

    def on_end(self, pidfd: int) -> None:
        pid, life = self._lives.pop(pidfd)
        os.close(pidfd)
        with life:
            _say(life, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

    def forget(self) -> None:
        """In a fork: they belong to the parent."""
        for pidfd, (_, life) in self._lives.items():
            os.close(pidfd)
            life.close()


def _say(life: socket.socket, number: int) -> None:
    with suppress(OSError):  # the other end may be gone
        life.send(str(number).encode())


def main() -> None:
    """Fork for each request until the parent process is gone."""
    parent_pid = os.getppid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for that process
    gc.disable()
    _import_all()
    gc.freeze()
    control = socket.socket(fileno=os.dup(CONTROL_FD))
    children = _Children()
    while os.getppid() == parent_pid:
        watched = [control.fileno(), *children.pidfds]
        for fd in readable(watched, PARENT_CHECK_S):
            if fd != control.fileno():
                children.on_end(fd)
                continue
            request, fds, _, _ = socket.recv_fds(control, REQUEST_BYTES_MAX, 2)
            if not request:
                return
            log_fd, life_fd = fds
            with suppress(OSError):  # no room for a process: the other end hears it
                _fork(json.loads(request), log_fd, socket.socket(fileno=life_fd), control, children)
            os.close(log_fd)


def _import_all() -> None:
    """Import everything, as the command does before it forks, and what processes import when they
    first need it: for a cluster, TLS, groups, a scrape, the console.
    """
    import encodings.idna  # noqa: F401  looks up names of hosts

    from kbroker.cli import start as start
    from kbroker.config import loader
    from kbroker.console import server as server
    from kbroker.ipc.process_kinds import WORKERS
    from kbroker.metastore import cluster_identity as cluster_identity
    from kbroker.metastore import kept_session as kept_session
    from kbroker.metastore import session_file as session_file
    from kbroker.metastore import zookeeper as zookeeper
    from kbroker.supervisor import launch as launch
    from kbroker.workers.exporter import sources as sources
    from kbroker.workers.network import handshakes as handshakes

    config, _ = loader.load(None, {"zookeeper.connect": "localhost"})
    for row in WORKERS.values():
        row.load().import_for(config)


def _fork(
    request: list[str],
    log_fd: int,
    life: socket.socket,
    control: socket.socket,
    children: _Children,
) -> None:
    try:
        pid = os.fork()
    except OSError:
        life.close()
        raise
    if pid:
        children.add(pid, life)
        return
    try:  # whatever happens, no fork continues as a second template
        for sock in (life, control):
            sock.close()
        children.forget()
        _become(request, log_fd)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(EXIT_CRASH)


def _become(request: list[str], log_fd: int) -> NoReturn:
    """Run the command in this process, as if it had been started."""
    from kbroker.cli import start

    directory, *arguments = request
    null_fd = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null_fd, 0), (log_fd, 1), (log_fd, 2)):
        os.dup2(source, target)
    os.close(null_fd)
    os.close(log_fd)
    os.chdir(directory)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.enable()
    code: Any = EXIT_CRASH
    try:
        code = start.main(arguments)
    except SystemExit as error:
        code = error.code
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else EXIT_CRASH)


if __name__ == "__main__":
    main()
