"""What is loaded before the fork, which all processes of a broker have."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.unit

# In a process of its own: this one has loaded more.
SCRIPT = """
import json, sys
from kbroker.config.loader import BrokerConfig
from kbroker.ipc.process_kinds import WORKERS
import kbroker.supervisor.launch

config = BrokerConfig({"listeners": sys.argv[1]})
for row in WORKERS.values():
    row.load().import_for(config)
print(json.dumps(list(sys.modules)))
"""
OF_TLS = {
    "ssl",
    "kbroker._ext.sockets.tls_transport",
    "kbroker.security.tls.contexts",
    "kbroker.workers.network.handshakes",
}


@pytest.mark.parametrize("uses_tls", [False, True])
def test_parts_for_tls_are_loaded_before_the_fork_if_a_listener_uses_it(uses_tls: bool) -> None:
    """They are 1.4 MiB; a process that loads them by itself has a copy of its own."""
    listeners = "PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0" if uses_tls else "PLAINTEXT://:0"
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, listeners], capture_output=True, text=True, check=True
    )
    loaded = set(json.loads(done.stdout))

    assert loaded & OF_TLS == (OF_TLS if uses_tls else set())
    assert "kbroker.peers.security" not in loaded, "no other broker is connected to"
