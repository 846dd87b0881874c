"""Written data reaches the disk while the rest is still being produced."""

from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

import pyarrow as pa

from kbroker.spark.load import writeback, writer
from kbroker.spark.load.writer import FileOptions, RangeWriter

pytestmark = pytest.mark.unit

ROWS = 1000


def batch(first: int) -> pa.RecordBatch:
    offsets = range(first, first + ROWS)
    return pa.record_batch(
        {
            "value": pa.array([b"%d" % offset * 9 for offset in offsets]),
            "partition": pa.array([0] * ROWS, pa.int32()),
            "offset": pa.array(offsets, pa.int64()),
            "timestamp": pa.array([0] * ROWS, pa.timestamp("us", "UTC")),
        }
    )


def test_each_row_group_is_on_its_way_before_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole file so far, each byte once, and only data that the kernel already has."""
    begun: list[tuple[int, int]] = []

    def start(descriptor: int, offset: int, size: int) -> None:
        (path,) = (tmp_path / "staging").iterdir()
        assert path.stat().st_size == offset + size
        begun.append((offset, size))

    monkeypatch.setattr(writer, "start_writeback", start)
    monkeypatch.setattr(writer, "ROW_GROUP_ROWS", ROWS)
    made = RangeWriter(tmp_path, "staging", ("t", 0, 0, 3 * ROWS), "a", FileOptions())
    for first in range(0, 3 * ROWS, ROWS):
        made.write(batch(first))
    made.finish()

    assert [offset for offset, _ in begun] == [0, begun[0][1], begun[0][1] + begun[1][1]]
    assert all(size > 0 for _, size in begun)


def test_hint_that_the_kernel_refuses_fails_nothing(tmp_path: Path) -> None:
    with (tmp_path / "f").open("wb") as file:
        file.write(b"x" * 10_000)
        file.flush()
        writeback.start_writeback(file.fileno(), 0, 10_000)
        writeback.start_writeback(file.fileno(), 0, 0)
    writeback.start_writeback(-1, 0, 10)

    assert (tmp_path / "f").read_bytes() == b"x" * 10_000
