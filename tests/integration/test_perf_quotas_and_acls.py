"""The benchmarks of quotas and ACLs at toy size, against brokers of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]


def run(tmp_path: Path, tool: str, *arguments: str) -> dict[str, Any]:
    """The results by cell; whether a bar is met is nothing for a loaded machine."""
    output = tmp_path / "result.json"
    command = [sys.executable, str(ROOT / "perf" / tool), *arguments, f"--output={output}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode in (0, 1), done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    cells = json.loads(output.read_text())["cells"]
    return {name: cell["results"] for name, cell in cells.items()}


def test_requests_with_and_without_acls_are_compared(tmp_path: Path) -> None:
    toy_size = ("--acls", "40", "--principals", "4", "--seconds", "0.5", "--runs", "1")
    results = run(tmp_path, "acl_cost.py", *toy_size)

    assert list(results) == ["fetch", "produce"]
    for cell in results.values():
        assert list(cell) == ["super users", "with ACLs"]
        (runs, others) = (one["runs"] for one in cell.values())
        assert all(run["cpu_us_per_request"] > 0 for run in (*runs, *others))


def test_clients_that_share_a_quota_are_held_back(tmp_path: Path) -> None:
    results = run(tmp_path, "quota.py", "--clients", "2", "--seconds", "1", "--rate", "1000000")

    assert list(results) == ["producer_byte_rate_2", "consumer_byte_rate_2"]
    # Without the quota they use hundreds of megabytes a second.
    assert all(0 < cell["kbroker"]["runs"][0]["share"] < 3 for cell in results.values())
