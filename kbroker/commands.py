"""The installed commands, each a function here.

Nothing is imported before Ctrl-C ends a command quietly: until its program is there, half a second
for some, it would be a traceback.
"""

from __future__ import annotations

import importlib
import os
import signal
from typing import NoReturn

EXIT_INTERRUPTED = 128 + signal.SIGINT


def supervisor() -> int:
    return _run("kbroker.cli.start")


def log() -> int:
    return _run("kbroker.cli.log")


def adopt() -> int:
    return _run("kbroker.cli.adopt")


def load() -> int:
    return _run("kbroker.spark.load.cli")


def audit() -> int:
    return _run("kbroker.spark.audit.cli")


def mirror() -> int:
    return _run("kbroker.spark.mirror.cli")


def _run(program: str) -> int:
    """Import the program and run its ``main``; its exit code."""
    # Some shells start what runs in the background with SIGINT ignored: that stays.
    is_heard = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    try:
        if is_heard:
            # No exception: what is imported may catch it, or take it for something else.
            signal.signal(signal.SIGINT, _leave)
        main = importlib.import_module(program).main
        if is_heard:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        return int(main())
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _leave(*_: object) -> NoReturn:
    os._exit(EXIT_INTERRUPTED)
