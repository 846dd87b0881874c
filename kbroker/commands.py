"""The installed commands, one function each.

Imports come only after the handler for Ctrl-C is set: importing a command's program takes up to
half a second, during which Ctrl-C would print a traceback.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import NoReturn

EXIT_FAILED = 1
EXIT_INTERRUPTED = 128 + signal.SIGINT
EXIT_TERMINATED = 128 + signal.SIGTERM

_terminated = False


def kbroker() -> int:
    return _run("kbroker.cli.command")


def supervisor() -> int:
    return _run("kbroker.cli.start")


def log() -> int:
    return _run("kbroker.cli.log")


def adopt() -> int:
    return _run("kbroker.cli.adopt")


def kafka_tool() -> int:
    return _run("kbroker.cli.kafka.table", is_job=True)


def load() -> int:
    return _run("kbroker.spark.load.cli", is_job=True)


def audit() -> int:
    return _run("kbroker.spark.audit.cli", is_job=True)


def mirror() -> int:
    return _run("kbroker.spark.mirror.cli", is_job=True)


def _run(program: str, *, is_job: bool = False) -> int:
    """Import the program and run its ``main``; return its exit code.

    is_job: SIGTERM, with which systemd, Kubernetes and Airflow stop a process, ends it in the same
    way as Ctrl-C, except for the exit code.
    """
    # Some shells start background jobs with SIGINT ignored: it stays ignored.
    is_heard = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    is_job = is_job and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    try:
        # Not an exception: imported code might catch it or misinterpret it.
        if is_heard:
            signal.signal(signal.SIGINT, _leave)
        if is_job:
            signal.signal(signal.SIGTERM, _leave)
        main = importlib.import_module(program).main
        if is_heard:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if is_job:
            signal.signal(signal.SIGTERM, _terminate)
        code = _called(main)
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
    return EXIT_TERMINATED if _terminated and code == EXIT_INTERRUPTED else code


def _called(main: Callable[[], int]) -> int:
    """The exit code, once everything is written; 1, with a line, if it cannot be."""
    from kbroker.standard_output import OutputLost, forget_stdout, guard_stdout

    guard_stdout()
    try:
        try:
            code = int(main())
        except (SystemExit, KeyboardInterrupt):  # argparse ends by the first
            sys.stdout.flush()
            raise
        sys.stdout.flush()
        return code
    except OutputLost as error:
        forget_stdout()
        name = os.path.basename(sys.argv[0]).removesuffix(".sh")
        print(f"{name}: {error}", file=sys.stderr)
        return EXIT_FAILED


def _terminate(number: int, frame: FrameType | None) -> None:
    """The effect of Ctrl-C now: PySpark cancels jobs, but a starting JVM finishes its start
    first.
    """
    global _terminated
    _terminated = True
    interrupt = signal.getsignal(signal.SIGINT)
    if not callable(interrupt):
        raise KeyboardInterrupt
    interrupt(signal.SIGINT, frame)


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    os._exit(128 + number)
