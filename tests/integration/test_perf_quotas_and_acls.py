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


def run(tool: str, *arguments: str) -> list[dict[str, Any]]:
    """The rows it prints; whether a bar is met is nothing for a loaded machine."""
    command = [sys.executable, str(ROOT / "perf" / tool), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode in (0, 1), done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_requests_with_and_without_acls_are_compared() -> None:
    toy_size = ("--acls", "40", "--principals", "4", "--seconds", "0.5", "--runs", "1")
    rows = run("acl_cost.py", *toy_size)

    assert [row["request"] for row in rows] == ["fetch", "produce"]
    assert all(row["us"] > 0 and row["us_with_acls"] > 0 for row in rows)


def test_clients_that_share_a_quota_are_held_back() -> None:
    rows = run("quota.py", "--clients", "2", "--seconds", "1", "--rate", "1000000")

    assert [row["quota"] for row in rows] == ["producer_byte_rate", "consumer_byte_rate"]
    # Without the quota they use hundreds of megabytes a second.
    assert all(0 < row["share"] < 3 for row in rows)
