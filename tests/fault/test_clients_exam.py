"""A sample of the exam of clients: each kind of role, each kind of fault (docs/testing.md)."""

from __future__ import annotations

from pathlib import Path

import pytest
from fault.clients.runner import Results, Wanted, run, summary

pytestmark = [pytest.mark.fault, pytest.mark.slow, pytest.mark.timeout(900)]


def test_clients_keep_their_promises_in_faults(seed: int, tmp_path: Path) -> None:
    cells = Wanted("commit", [], []).cells()
    results = Results(tmp_path / "results")

    verdicts = run(cells, "kbroker", results, seed=seed)

    assert len(verdicts) == len(cells)
    assert not any(one.problem for one in verdicts), summary(cells, results)
