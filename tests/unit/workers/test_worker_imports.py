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

config = BrokerConfig(json.loads(sys.argv[1]))
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


def loaded_with(**settings: str) -> set[str]:
    config = json.dumps({name.replace("_", "."): text for name, text in settings.items()})
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, config], capture_output=True, text=True, check=True
    )
    return set(json.loads(done.stdout))


@pytest.mark.parametrize("uses_tls", [False, True])
def test_parts_for_tls_are_loaded_before_the_fork_if_a_listener_uses_it(uses_tls: bool) -> None:
    """They are 1.4 MiB; a process that loads them by itself has a copy of its own."""
    listeners = "PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0" if uses_tls else "PLAINTEXT://:0"
    loaded = loaded_with(listeners=listeners)

    assert loaded & OF_TLS == (OF_TLS if uses_tls else set())
    assert "kbroker.peers.security" not in loaded, "no other broker is connected to"


@pytest.mark.parametrize("is_in_cluster", [False, True])
def test_coordinators_of_a_broker_in_a_cluster_are_loaded_before_the_fork(
    is_in_cluster: bool,
) -> None:
    """The code takes 0.1 s of CPU, in which an io worker that takes over a coordinator would serve
    nobody. A single broker starts without it.
    """
    settings = {"zookeeper_connect": "127.0.0.1:2181"} if is_in_cluster else {}
    loaded = loaded_with(**settings)

    machines = {
        "kbroker.coordinator.group.machine",
        "kbroker.coordinator.offsets.offsets",
        "kbroker.coordinator.transaction.machine",
        "kbroker.workers.io.remote_markers",
    }
    assert loaded & machines == (machines if is_in_cluster else set())
