"""What the exam of clients reads of a load's files."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fault.clients.pipelines import Files

pyarrow = pytest.importorskip("pyarrow")


def test_range_that_an_hours_end_divides_is_told_in_order(tmp_path: Path) -> None:
    """Both of its files have the range's offsets in their names."""
    from pyarrow import parquet

    for hour, offsets in (("00", [2, 3]), ("23", [0, 1])):
        folder = tmp_path / f"data/topic=a/hr={hour}"
        folder.mkdir(parents=True)
        table = pyarrow.table(
            {
                "partition": [7] * len(offsets),
                "offset": offsets,
                "value": [b"%d" % offset for offset in offsets],
            }
        )
        parquet.write_table(table, folder / f"a-7-{0:020d}-{4:020d}-{hour}.parquet")
    told: list[Any] = []
    program: Any = SimpleNamespace(
        told=SimpleNamespace(tell=lambda kind, rows: told.append((kind, rows)))
    )
    files = Files(program, tmp_path)
    files.tell()
    files.tell()
    assert told == [("returned", [(7, 0, "0"), (7, 1, "1"), (7, 2, "2"), (7, 3, "3")])]
