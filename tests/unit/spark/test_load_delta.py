"""A Delta table that no JVM has written."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from doubles.load_source import MadeUp, expected, load

from kbroker.spark.direct import InlineRunner
from kbroker.spark.load.engine import Load, Settings

deltalake = pytest.importorskip("deltalake")

from kbroker.spark.load.delta import Delta  # noqa: E402

pytestmark = pytest.mark.unit


def places(root: Path) -> Counter[tuple[str, int, int]]:
    """What the table has, as its own reader sees it."""
    table = deltalake.DeltaTable(str(root)).to_pyarrow_table()
    columns = [table.column(name).to_pylist() for name in ("topic", "partition", "offset")]
    return Counter(zip(*columns, strict=True))


def test_load_is_a_version_of_the_table_with_its_offsets(tmp_path: Path) -> None:
    load(MadeUp.of({"a": [800, 5]}), Delta(tmp_path))
    load(MadeUp.of({"a": [900, 5]}), Delta(tmp_path))

    newest = deltalake.DeltaTable(str(tmp_path)).history(1)[0]
    assert places(tmp_path) == expected(MadeUp.of({"a": [900, 5]}))
    assert json.loads(newest["kbroker.ends"]) == {"a": {"0": 900, "1": 5}}
    assert deltalake.DeltaTable(str(tmp_path)).transaction_version("test") == 2


def test_publishing_again_adds_nothing(tmp_path: Path) -> None:
    made = load(MadeUp.of({"a": [300]}), Delta(tmp_path))

    Delta(tmp_path).publish(made[0])

    assert places(tmp_path) == expected(MadeUp.of({"a": [300]}))
    assert len(deltalake.DeltaTable(str(tmp_path)).history()) == 2


def test_rewind_replaces_files_in_one_version(tmp_path: Path) -> None:
    source = MadeUp.of({"a": [300]})
    load(source, Delta(tmp_path))

    Load(source, Delta(tmp_path), InlineRunner(), Settings(load="test")).rewind({("a", 0): 10})

    assert places(tmp_path) == expected(source)
