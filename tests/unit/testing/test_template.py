"""A process forked by another one."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys

import pytest

from kbroker.testing.template import ForkedProcess

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
