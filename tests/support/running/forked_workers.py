"""Test processes that are forks of one process, which has collected the tests for all of them.

By themselves, each of pytest-xdist's workers imports all modules of tests and collects 16,000
tests: seven or more seconds of a processor for each. Here the controller starts one process, the
collector, which does what a worker does up to its first test, and keeps what it has to tell the
controller. Each worker that xdist starts, also the one in place of a worker that has died, is a
fork of the collector:

    controller --execnet's popen--> relay --its descriptors 0, 1--> collector --fork--> worker

The relay (``worker_relay.py``) is what execnet takes for the worker. It ends when the worker ends,
and the worker with it. From there on, controller and worker talk as ever.
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any

import pytest

# What the collector runs; its argument is a job.
START = """
import json, sys
job = json.loads(sys.argv[1])
sys.path[:] = job["path"]
from support.running import forked_workers
forked_workers.collect(job)
"""
# What execnet runs in a worker: the channel to the controller comes to its main thread.
REMOTE = """
from support.running import forked_workers
forked_workers.hand_over(channel)
"""
HOUR_S = 3600.0
RELAY = Path(__file__).with_name("worker_relay.py")


# -- in the controller


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config, specs: Sequence[Any]) -> None:
    """Let workers on this machine, with this interpreter, be forks of a collector."""
    if all(spec.popen and not (spec.python or spec.chdir or spec.via) for spec in specs):
        config.pluginmanager.register(Collector(config, specs))


class Collector:
    """The collector as its controller sees it, until the run ends."""

    def __init__(self, config: pytest.Config, specs: Sequence[Any]) -> None:
        self._home = tempfile.mkdtemp(prefix="kbroker-tests-")
        address = f"{self._home}/collector"
        reads_end, self._writes_nothing = os.pipe()
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(address)
            listener.listen(len(specs))
            job = {
                "path": sys.path,
                "args": [str(argument) for argument in config.invocation_params.args],
                "mainargv": sys.argv,
                "count": len(specs),
                "home": self._home,
                "listener": listener.fileno(),
                "controller": reads_end,
            }
            self._process = subprocess.Popen(
                [sys.executable, "-c", START, json.dumps(job)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(listener.fileno(), reads_end),
            )
        os.close(reads_end)
        for spec in specs:
            spec.python = shlex.join([sys.executable, "-IS", str(RELAY), address])

    def pytest_xdist_getremotemodule(self) -> str:
        """What workers run instead of ``xdist.remote``."""
        return REMOTE

    def pytest_unconfigure(self) -> None:
        os.close(self._writes_nothing)  # all workers have ended
        self._process.wait()
        shutil.rmtree(self._home, ignore_errors=True)


# -- in the collector, and in the workers, its forks

_messages: SimpleQueue[tuple[Any, dict[str, Any], dict[str, Any]] | None] = SimpleQueue()
_ended = Event()


def pytest_unconfigure(config: pytest.Config) -> None:
    """execnet interrupts a worker whose end takes longer than five seconds."""
    if hasattr(config, "workerinput"):
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def collect(job: dict[str, Any]) -> None:
    """Collect, fork workers until the controller ends; in a worker, run tests."""
    from _pytest.config import _prepareconfig

    os.set_inheritable(job["listener"], False)
    os.set_inheritable(job["controller"], False)
    config: Any = _prepareconfig(job["args"], None)
    from xdist import remote  # not before: pytest rewrites its assertions

    remote.setup_config(config, None)
    config._parser.prog = os.path.basename(job["mainargv"][0])
    config.workerinput = {"workerid": "collector", "workercount": job["count"], "testrunuid": ""}
    config.workeroutput = {}
    worker = remote.interactor = _worker_class()(config, job)
    try:
        try:
            config.hook.pytest_cmdline_main(config=config)
        except pytest.UsageError as error:
            print(f"ERROR: {error}", file=sys.stderr)
        worker.fork()  # unless this is one: pytest has ended before the tests, which workers report
    finally:
        _ended.set()
    worker.serving.join()


def hand_over(channel: Any) -> None:
    """Give the main thread what xdist sends first, and keep the channel until that has ended."""
    workerinput, _args, options, _path = channel.receive()
    _messages.put((channel, workerinput, options))
    _ended.wait()


def _worker_class() -> type[Any]:
    """It is made here as only runs with xdist have its base."""
    from execnet.gateway_base import Popen2IO, get_execmodel, serve
    from xdist.remote import WorkerInteractor

    execmodel = get_execmodel("main_thread_only")

    class Events:
        """What the controller of a fork will hear first."""

        gateway = SimpleNamespace(execmodel=execmodel)

        def __init__(self) -> None:
            self.events: list[object] = []

        def send(self, event: object) -> None:
            self.events.append(event)

    class ForkedWorker(WorkerInteractor):
        """xdist's side of a worker, which becomes one between collection and the first test."""

        def __init__(self, config: Any, job: dict[str, Any]) -> None:
            self._job = job
            self.serving: Thread | None = None
            super().__init__(config, Events())

        def pytest_runtestloop(self, session: pytest.Session) -> bool:
            capturing = self.config.pluginmanager.getplugin("capturemanager")
            capturing.stop_global_capturing()  # its files would be those of all forks
            self.fork()
            capturing.start_global_capturing()
            return bool(super().pytest_runtestloop(session))

        def fork(self) -> None:
            """Return in each fork, connected to the controller; nothing happens in a fork."""
            if self.serving is not None:
                return
            reads, writes = _become_fork(self._job)
            reader = os.fdopen(reads, "rb")
            reader.readline()  # execnet's code for a worker, which is imported here
            gateway = Popen2IO(os.fdopen(writes, "wb"), reader, execmodel)
            gateway.write(b"1")
            self.serving = Thread(target=self._serve, args=(gateway,), daemon=True)
            self.serving.start()
            first = _messages.get()
            if first is None:
                os._exit(1)
            recorded, (self.channel, workerinput, options) = self.channel, first
            self._take(workerinput, options)
            for event in recorded.events:
                self.channel.send(event)

        def _serve(self, gateway: Popen2IO) -> None:
            serve(gateway, "worker")
            _messages.put(None)  # for a controller that has ended before it has said anything

        def _take(self, workerinput: dict[str, Any], options: dict[str, Any]) -> None:
            """Be the worker that the controller names, as ``xdist.remote`` does it."""
            self.config.workerinput.update(workerinput)
            self.workerid, self.testrunuid = workerinput["workerid"], workerinput["testrunuid"]
            os.environ["PYTEST_XDIST_TESTRUNUID"] = self.testrunuid
            os.environ["PYTEST_XDIST_WORKER"] = self.workerid
            os.environ["PYTEST_XDIST_WORKER_COUNT"] = str(workerinput["workercount"])
            self.config.option.basetemp = basetemp = options.get("basetemp")
            if basetemp and hasattr(self.config, "_tmp_path_factory"):  # not after its end
                self.config._tmp_path_factory._given_basetemp = Path(basetemp)
            random.seed()

    return ForkedWorker


def _become_fork(job: dict[str, Any]) -> tuple[int, int]:
    """Serve relays as long as there is a controller. Returns in forks only: descriptors that the
    fork reads from and writes to.
    """
    from kbroker.descriptors import readable  # not before: pytest rewrites its assertions

    interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
    ends: list[int] = []  # readable when a fork has ended
    controller: int = job["controller"]  # readable when it has ended
    with socket.socket(fileno=job["listener"]) as listener:
        while True:
            ready = readable([listener.fileno(), controller, *ends], HOUR_S)
            is_over = controller in ready  # and the forks are about to end
            for end in list(ends) if is_over else set(ready).intersection(ends):
                os.waitid(os.P_PIDFD, end, os.WEXITED)  # its CPU time counts from here on
                ends.remove(end)
                os.close(end)
            if is_over:
                shutil.rmtree(job["home"], ignore_errors=True)  # the controller may be dead
                os._exit(0)
            if listener.fileno() not in ready:
                continue
            relay, _ = listener.accept()
            _, fds, _, _ = socket.recv_fds(relay, 1, 2)
            if len(fds) == 2:
                pid = os.fork()
                if pid == 0:
                    break
                ends.append(os.pidfd_open(pid))
            for fd in (relay.detach(), *fds):
                os.close(fd)
    for fd in (controller, *ends):
        os.close(fd)
    signal.signal(signal.SIGINT, interrupt)
    # The relay's end is this process's end, whatever it is busy with: SIGIO. The descriptor stays
    # open, by which the relay knows that this process is there.
    fcntl.fcntl(relay, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(relay, fcntl.F_SETFL, fcntl.fcntl(relay, fcntl.F_GETFL) | os.O_ASYNC)
    relay.detach()
    return fds[0], fds[1]
