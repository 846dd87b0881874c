"""A process forked by another one."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys

import pytest

from kbroker.testing.template import ForkedProcess

LATE = ("kazoo.client", "kbroker.console.application", "kbroker.coordinator.group.machine",
        "kbroker.workers.exporter.figures", "kbroker.workers.network.handshakes")  # fmt: skip

pytestmark = pytest.mark.unit


def test_signal_to_a_process_that_is_gone_before_its_code_came_is_no_error() -> None:
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    with theirs:
        theirs.send(str(ended.pid).encode())
        process = ForkedProcess(mine)

        process.send_signal(signal.SIGSTOP)

        assert process.poll() is None
        theirs.send(b"-9")
        assert process.wait() == -9


@pytest.mark.slow
def test_template_has_what_processes_of_a_broker_import_when_they_need_it() -> None:
    """Otherwise each of them imports it again, which takes longer than all else of a start."""
    program = f"""
import sys
from kbroker.testing.template import _import_all
_import_all()
print(*(name for name in {LATE} if name not in sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert (done.stdout, done.stderr) == ("\n", "")
