"""The memory of a broker that does nothing, with the settings that it is delivered with."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.running.sanitizer import measures_memory

from kbroker.testing import Broker, wait_until

pytestmark = pytest.mark.integration

COMMAND = [sys.executable, "-m", "kbroker.cli.start"]
# An idle broker has 62.2 MiB of it, and varies by 0.3. Files mapped by its processes, another
# 10 MiB, are shared with other Python programs on this machine.
ANONYMOUS_MIB_MAX = 63.0


def anonymous_mib(broker: Broker) -> float:
    """Memory of the tree that is in no file; what its processes share counts once."""
    kib = 0
    for pid in (broker.pid, *broker.pids.values()):
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
        lines = (line.split() for line in rollup.splitlines())
        kib += next(int(words[1]) for words in lines if words[0] == "Pss_Anon:")
    return kib / 1024


@measures_memory
def test_idle_broker_shares_most_of_its_memory_between_its_processes() -> None:
    """Whatever each process makes for itself counts eight times; the supervisor can make it for
    all.
    """
    package = Path(sys.modules["kbroker"].__file__ or "").parent
    # Compiling at the start leaves garbage in the heap.
    subprocess.run([sys.executable, "-m", "compileall", "-q", package], check=True)
    with Broker(command=COMMAND, num_io_threads=2, num_network_threads=1) as broker:
        wait_until(lambda: len(broker.pids) == 7, what="all processes have their titles")
        assert anonymous_mib(broker) < ANONYMOUS_MIB_MAX
