"""The modules imported by a Spark worker are not garbage collected after each task."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.unit

# In a process of its own: what is frozen in a test process stays so, as tests/conftest.py wants it.
ONCE = """
import gc
from kbroker.spark import worker_process
worker_process.prepare_worker()
assert any(one is worker_process.__dict__ for one in gc.get_objects()) is False
count = gc.get_freeze_count()
assert count > 1000
later = [[number] for number in range(1000)]
worker_process.prepare_worker()
assert gc.get_freeze_count() <= count, "what came later is frozen, too"
assert len(later) == 1000
"""
AGAIN = """
import gc, os
from kbroker.spark import worker_process
worker_process.prepare_worker()
gc.unfreeze()
os.getpid = lambda: 8
worker_process.prepare_worker()
assert gc.get_freeze_count() > 1000
"""


@pytest.mark.parametrize("program", [ONCE, AGAIN], ids=["once in a process", "again in a child"])
def test_worker_is_prepared(program: str) -> None:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert done.stderr == ""
