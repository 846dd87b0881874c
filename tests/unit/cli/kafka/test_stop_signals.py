import signal
import subprocess
import sys

import pytest

# What is under way when the signal arrives, in a process of its own: it handles signals.
PROGRAM = """
import os, signal, sys, time
from kbroker.cli.kafka.events import Stopped, StopSignals
signals = StopSignals()
done = 0
try:
{body}
except Stopped:
    print("stopped", done)
"""
HELD = """
    with signals:
        os.kill(os.getpid(), signal.{name})
        done += 1
    done += 10
"""
BLOCKED = """
    with signals:
        os.kill(os.getpid(), signal.{name})
        time.sleep(300.0)
        done += 1
"""
OPEN = """
    with signals:
        done += 1
    os.kill(os.getpid(), signal.{name})
    done += 10
"""
SECOND = """
    with signals:
        os.kill(os.getpid(), signal.{name})
        os.kill(os.getpid(), signal.{name})
        done += 1
"""


def run(body: str, name: str) -> tuple[str, int]:
    program = PROGRAM.format(body=body.format(name=name))
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    return ended.stdout.strip(), ended.returncode


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
@pytest.mark.parametrize(
    ("body", "said"), [(HELD, "stopped 1"), (BLOCKED, "stopped 0"), (OPEN, "stopped 1")]
)
def test_signal_waits_for_what_is_under_way_unless_that_takes_long(
    body: str, said: str, name: str
) -> None:
    assert run(body, name) == (said, 0)


def test_second_signal_ends_the_process() -> None:
    assert run(SECOND, "SIGTERM") == ("", -signal.SIGTERM)
