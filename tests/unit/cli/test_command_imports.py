"""What ``kbroker topic list`` imports decides how long it takes; time itself depends on the
machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.brokers.fake_broker import FakeBroker

pytestmark = pytest.mark.unit

PROGRAM = """
import sys
sys.argv = ["kbroker", *sys.argv[1:]]
from kbroker.commands import kbroker
code = kbroker()
print("modules", *sorted(sys.modules), file=sys.stderr)
sys.exit(code)
"""
# Each takes 2 ms or more, and is needed for something else: TLS, SASL, warnings, errors, a codec.
HEAVY = {
    "asyncio",
    "bz2",
    "datetime",
    "difflib",
    "encodings.idna",
    "hashlib",
    "inspect",
    "json",
    "kbroker.wire.sasl",
    "kbroker.config",
    "kbroker.record.compression",
    "kbroker.security",
    "logging",
    "lzma",
    "numpy",
    "shutil",
    "ssl",
    "subprocess",
    "tempfile",
    "urllib",
    "zlib_ng",
}
# The verb, the client below it with its rooms, and the messages of two APIs.
KBROKER_MODULES_MAX = 48


def modules_of(*words: str) -> set[str]:
    with FakeBroker() as broker:
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, *words, "-b", broker.bootstrap],
            capture_output=True,
            text=True,
            timeout=60,
            env=environment,
        )
    assert done.returncode == 0, done.stderr
    return set(done.stderr.rpartition("modules ")[2].split())


def test_list_of_topics_imports_only_what_it_needs():
    modules = modules_of("topic", "list")

    assert "kbroker.client.admin.topics" in modules, "it was asked"
    assert not HEAVY & modules
    assert len([name for name in modules if name.startswith("kbroker")]) <= KBROKER_MODULES_MAX


def test_json_is_imported_for_json():
    assert "json" in modules_of("topic", "list", "-o", "json")


def test_numpy_and_posix_ipc_are_loaded_only_where_they_are_used() -> None:
    """numpy takes 60 ms and 15 MB, which every process of a broker would have."""
    program = (
        "import sys, kbroker.client, kbroker.supervisor.launch\n"
        "import kbroker.workers.controller.process\n"
        "import kbroker.workers.io.io_worker, kbroker.workers.network.network\n"
        "import kbroker.workers.exporter.exporter, kbroker.cli.local.choice\n"
        "print(sorted({'numpy', 'posix_ipc'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True, text=True, timeout=120, check=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
    )  # fmt: skip
    assert done.stdout == "[]\n"
