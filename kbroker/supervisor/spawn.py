"""The code between ``fork`` and a worker's ``run``, and the arbiter's real ``System``."""

from __future__ import annotations

import faulthandler
import gc
import logging
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress

from kbroker import logcontext
from kbroker.errors import EXIT_BAD_CONFIG, EXIT_CRASH, EXIT_DONE, ConfigError
from kbroker.ipc.process_table import Address, ProcessKind
from kbroker.supervisor.signals import SignalQueue
from kbroker.workers.base import ProcessContext, Worker

logger = logging.getLogger(__name__)

ContextFactory = Callable[[Address, int], ProcessContext]


class ForkingSystem:
    """Real processes, real signals, the monotonic clock."""

    def __init__(
        self,
        workers: Mapping[ProcessKind, type[Worker]],
        context_for: ContextFactory,
        signals: SignalQueue,
        close_in_child: Callable[[], None],
        exit_with_parent: bool = False,
        heartbeat: Callable[[], None] = lambda: None,
    ) -> None:
        """close_in_child: drops what only the supervisor may hold, such as the lock of the runtime
        directory. heartbeat: called in each turn: the supervisor lives.
        """
        self._heartbeat = heartbeat
        self._workers = workers
        self._context_for = context_for
        self._signals = signals
        self._close_in_child = close_in_child
        self._parent_pid = os.getppid() if exit_with_parent else None

    def now(self) -> float:
        return time.monotonic()

    def wait_signals(self, timeout_s: float) -> list[int]:
        self._heartbeat()
        numbers = self._signals.wait(timeout_s)
        if self._parent_pid is not None and os.getppid() != self._parent_pid:
            numbers.append(signal.SIGTERM)
        return numbers

    def spawn(self, address: Address, incarnation: int) -> int:
        context = self._context_for(address, incarnation)
        with self._signals.blocked():
            pid = os.fork()
            if pid == 0:
                code = EXIT_CRASH
                try:  # whatever happens, no child continues as a second supervisor
                    self._signals.forget()
                    self._close_in_child()
                    code = child_main(self._workers[address.kind], context)
                except BaseException:
                    traceback.print_exc()
                finally:
                    os._exit(code)
        return pid

    def reap(self) -> list[tuple[int, int]]:
        ended: list[tuple[int, int]] = []
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return ended
            if pid == 0:
                return ended
            ended.append((pid, os.waitstatus_to_exitcode(status)))

    def kill(self, pid: int, number: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def child_main(worker: type[Worker], context: ProcessContext) -> int:
    """The whole life of a child; returns its exit code and never raises.

    ConfigError ends the broker; ``SystemExit(3)`` says "cannot start"; anything else is a crash and
    is restarted.
    """
    try:
        logcontext.name_process(context.address.title)
        gc.enable()
        faulthandler.enable()  # SIGABRT, SIGSEGV, SIGBUS: stacks to stderr before the process dies
        return worker(context).run()
    except ConfigError as error:
        logger.error("%s", error, extra={"event": "spawn.child-failed"})
        return EXIT_BAD_CONFIG
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else EXIT_DONE
    except BaseException:
        with suppress(Exception):  # the logger itself may be what fails
            logger.critical("crashed", exc_info=True)
            return EXIT_CRASH
        traceback.print_exc()
        return EXIT_CRASH
    finally:
        with suppress(Exception):  # stdout may be closed; the exit code must not change
            signal.set_wakeup_fd(-1)
            sys.stdout.flush()
            sys.stderr.flush()
