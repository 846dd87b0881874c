"""The names in /dev/shm of one broker; others on this machine have their own."""

from __future__ import annotations

import pytest

from kbroker.ipc.named_memory import has_package, named_runs, noted_run
from kbroker.testing import Broker

# Those who make shared memory with names cannot without posix_ipc; a broker takes memfds then.
needs_names = pytest.mark.skipif(
    not has_package(),
    reason="needs posix_ipc (pip install posix_ipc; there is no wheel for each Python)",
)


def nonces_of(broker: Broker) -> set[str]:
    """Of its run, or of the last one if it does not run."""
    found = set()
    for path in broker.config["log.dirs"].split(","):
        try:
            with open(f"{path.strip()}/.lock", "rb") as file:
                found.add(noted_run(file.fileno()))
        except OSError:
            continue  # a directory that cannot be used
    return {nonce for nonce in found if nonce}


def names_of(broker: Broker) -> set[str]:
    """The names that its last run has, or has left."""
    return names_of_runs(nonces_of(broker))


def names_of_runs(nonces: set[str]) -> set[str]:
    runs = named_runs()
    return {f"{nonce}.{region}" for nonce in nonces for region in runs.get(nonce, ())}
