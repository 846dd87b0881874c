"""Exam E10 at its small size; ``compaction_exam.py`` runs the large one."""

from __future__ import annotations

from pathlib import Path

import pytest
from fault.compaction_exam import run

pytestmark = [pytest.mark.fault, pytest.mark.timeout(600)]


def test_compacted_topic_under_kills_equals_the_dict(tmp_path: Path, seed: int, scale: int) -> None:
    run(50_000 * scale, 2500 * scale, 4 * scale, seed, tmp_path)
