"""Loads into folders and tables, counted as their readers see them."""

from __future__ import annotations

import json
import shutil
import struct
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.spark.load_source import MadeUp, destination_of, expected, load, row, rows_in_table

from kbroker.spark.audit import loads
from kbroker.spark.audit.report import summed
from kbroker.spark.direct import InlineRunner
from kbroker.spark.load.commits import LoadError
from kbroker.spark.load.directory import Directory
from kbroker.spark.load.maintenance import compact

pytestmark = pytest.mark.unit

BUCKET = 600_000
SOURCE = MadeUp.of({"a": [700, 3], "b": [90]})
Buckets = Counter[tuple[str, int]]


def at(root: Path, kind: str) -> Directory:
    pytest.importorskip({"delta": "deltalake", "iceberg": "pyiceberg"}.get(kind, "pyarrow"))
    found = destination_of(str(root), kind)
    assert isinstance(found, Directory)
    return found


def loaded(root: Path, kind: str) -> Directory:
    """In several commits, each with small files."""
    load(SOURCE, at(root, kind), commit_bytes=256 * 200)
    return at(root, kind)


def counts(root: Path, kind: str, bucket_ms: int = BUCKET, from_ms: int | None = None) -> Buckets:
    told = loads.loaded(at(root, kind), InlineRunner(), bucket_ms=bucket_ms, from_ms=from_ms)
    found = summed(told)
    return Counter({(topic, bucket): one.count for (topic, bucket, _), one in found.items()})


def buckets(places: Counter[tuple[str, int, int]], bucket_ms: int = BUCKET) -> Buckets:
    found: Buckets = Counter()
    for (topic, partition, offset), times in places.items():
        time_ms = max(0, int(str(row(topic, partition, offset)["timestamp"])) // 1000)
        found[topic, time_ms // bucket_ms * bucket_ms] += times
    return found


@pytest.mark.parametrize("kind", ["dir", "delta", "iceberg"])
def test_files_as_loaded_are_counted_by_their_commits(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However large they are, none is opened."""
    loaded(tmp_path, kind)
    monkeypatch.setattr(loads, "FilesWork", None)

    assert counts(tmp_path, kind) == buckets(expected(SOURCE))

    monkeypatch.undo()
    compact(at(tmp_path, kind), "test", InlineRunner(), file_bytes=1 << 30)
    monkeypatch.setattr(loads, "FilesWork", None)
    assert counts(tmp_path, kind) == buckets(expected(SOURCE))


def test_files_that_were_removed_or_copied_by_hand_count_as_readers_see_them(
    tmp_path: Path,
) -> None:
    loaded(tmp_path, "dir")
    files = sorted(tmp_path.glob("data/topic=a/**/*.parquet"))
    gone, twice = files[0], files[-1]
    places: Counter[tuple[str, int, int]] = expected(SOURCE)
    for path, more in ((gone, -1), (twice, 1)):
        for one in pq.ParquetFile(path).read().to_pylist():
            places["a", one["partition"], one["offset"]] += more

    gone.unlink()
    shutil.copy(twice, twice.with_name("copied.parquet"))
    # What readers do not take for data.
    shutil.copy(twice, twice.with_name("_hidden.parquet"))
    shutil.copy(twice, tmp_path / "data/stray.parquet")

    assert +counts(tmp_path, "dir") == +buckets(places)
    assert max(places.values()) == 2 and 0 in places.values()


def test_file_that_was_cut_is_an_error_with_its_name(tmp_path: Path) -> None:
    loaded(tmp_path, "dir")
    path = next(tmp_path.glob("data/topic=a/**/*.parquet"))
    path.write_bytes(path.read_bytes()[:-5])

    with pytest.raises(LoadError, match=f"{path.name} cannot be read"):
        counts(tmp_path, "dir")


def optimized(root: Path) -> None:
    import deltalake

    table = deltalake.DeltaTable(str(root))
    table.optimize.compact()
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)


def rows_deleted(root: Path) -> None:
    import deltalake

    deltalake.DeltaTable(str(root)).delete('"partition" = 0 and "offset" < 100')


def appended(root: Path) -> None:
    """The rows of one file come a second time."""
    import deltalake

    path = min(root.glob("data/topic=a/**/*.parquet"))
    more = pq.ParquetFile(path).read()
    folders = [part.partition("=")[::2] for part in path.relative_to(root).parts[1:-1]]
    for name, value in folders:
        more = more.append_column(name, pa.array([value] * more.num_rows))
    deltalake.write_deltalake(str(root), more, mode="append")


def deleted_by_vector(root: Path) -> None:
    """As Spark and Databricks delete, without rewriting the file."""
    listed = sorted((root / "_delta_log").glob("*.json"))
    lines = [json.loads(line) for path in listed for line in path.read_text().splitlines()]
    add = next(line["add"] for line in lines if "add" in line)
    vector = _deletion_vector([0, 2])
    features = ["deletionVectors"]
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7}
    protocol |= {"readerFeatures": features, "writerFeatures": features}  # type: ignore[dict-item]
    remove = {"path": add["path"], "deletionTimestamp": 1, "dataChange": True}
    actions = [
        {"protocol": protocol},
        {"remove": remove | {"partitionValues": add["partitionValues"], "size": add["size"]}},
        {"add": add | {"deletionVector": vector}},
    ]
    text = "\n".join(map(json.dumps, actions))
    (root / "_delta_log" / f"{len(listed):020d}.json").write_text(text)


_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"


def _deletion_vector(positions: list[int]) -> dict[str, object]:
    """In the log itself: a magic number, then a bitmap in roaring's portable format."""
    bitmap = struct.pack("<IIHHI", 12346, 1, 0, len(positions) - 1, 16)
    bitmap += struct.pack(f"<{len(positions)}H", *positions)
    data = struct.pack("<IQI", 1681511377, 1, 0) + bitmap
    text = ""
    for first in range(0, len(data), 4):
        number = int.from_bytes(data[first : first + 4].ljust(4, b"\0"), "big")
        text += "".join(_Z85[number // 85**power % 85] for power in range(4, -1, -1))
    sizes = {"sizeInBytes": len(data), "cardinality": len(positions)}
    return {"storageType": "i", "pathOrInlineDv": text, **sizes}


def seen_in_delta(root: Path) -> Counter[tuple[str, int, int]]:
    """By deltalake's own reader, which knows deletion vectors."""
    import deltalake

    names = ("topic", "partition", "offset")
    quoted = ", ".join(f'"{name}"' for name in names)
    reader = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(str(root)))
    table = pa.table(reader.execute(f"SELECT {quoted} FROM t"))
    return Counter(zip(*(table.column(one).to_pylist() for one in names), strict=True))


@pytest.mark.parametrize(
    ("change", "more"),
    [(optimized, 0), (rows_deleted, -190), (appended, 173), (deleted_by_vector, -2)],
)
def test_delta_table_that_others_have_changed_is_counted_as_its_readers_see_it(
    tmp_path: Path, change: Callable[[Path], None], more: int
) -> None:
    destination = loaded(tmp_path, "delta")
    change(tmp_path)
    destination.log.expire(1 << 60)

    seen = seen_in_delta(tmp_path)
    assert counts(tmp_path, "delta") == buckets(seen)
    assert counts(tmp_path, "delta", 3_600_000) == buckets(seen, 3_600_000)
    assert seen.total() - expected(SOURCE).total() == more


def rewritten(root: Path) -> None:
    _iceberg(root).delete("offset = 7")


def few_left(root: Path) -> None:
    _iceberg(root).delete("offset < 250")


def _iceberg(root: Path):  # type: ignore[no-untyped-def]
    from kbroker.spark.load.iceberg_folder import FolderCatalog

    return FolderCatalog(root).load_table()


def deleted_by_position(root: Path) -> None:
    """As Spark deletes with merge-on-read: a file names the rows."""
    _delete_beside(root, "POSITION_DELETES")


def _delete_beside(root: Path, content: str) -> None:
    from pyiceberg import manifest

    table = _iceberg(root)
    file = next(iter(table.scan().plan_files())).file
    path = root / "data/deletes.parquet"
    rows = {"file_path": [file.file_path] * 2, "pos": pa.array([0, 2], pa.int64())}
    pq.write_table(pa.table(rows), path)
    made = manifest.DataFile.from_args(
        _table_format_version=2,
        content=getattr(manifest.DataFileContent, content),
        file_path=f"file://{path}",
        file_format=manifest.FileFormat.PARQUET,
        partition=file.partition,
        record_count=2,
        file_size_in_bytes=path.stat().st_size,
    )
    made.spec_id = file.spec_id
    change = table.transaction()
    with change.update_snapshot().fast_append() as snapshot:
        snapshot.append_data_file(made)
    change.commit_transaction()


@pytest.mark.parametrize("change", [rewritten, few_left, deleted_by_position])
def test_iceberg_table_that_others_have_changed_is_counted_as_its_readers_see_it(
    tmp_path: Path, change: Callable[[Path], None]
) -> None:
    destination = loaded(tmp_path, "iceberg")
    change(tmp_path)
    destination.log.expire(1 << 60)

    seen = rows_in_table(tmp_path, "iceberg")

    assert seen.total() < expected(SOURCE).total()
    assert counts(tmp_path, "iceberg") == buckets(seen)


def test_deletes_that_pyiceberg_cannot_apply_are_an_error(tmp_path: Path) -> None:
    loaded(tmp_path, "iceberg")
    _delete_beside(tmp_path, "EQUALITY_DELETES")

    with pytest.raises(LoadError, match=r"cannot be read: .*equality deletes"):
        counts(tmp_path, "iceberg")


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_file_that_a_table_lists_and_lacks_is_told_and_not_counted(
    tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    loaded(tmp_path, kind)
    path = next(tmp_path.glob("data/topic=b/**/*.parquet"))
    rows = pq.ParquetFile(path).metadata.num_rows
    path.unlink()

    found = counts(tmp_path, kind)

    assert found.total() == expected(SOURCE).total() - rows
    said = capsys.readouterr().err
    assert f"1 file of {tmp_path} missing, such as {path.relative_to(tmp_path)}" in said


def test_file_that_a_merge_replaces_meanwhile_is_counted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows are in another file, which the first look at the folder did not find."""
    destination = loaded(tmp_path, "dir")
    destination.log.expire(1 << 60)
    look = Directory.seen

    def look_and_merge(self: Directory):  # type: ignore[no-untyped-def]
        found = look(self)
        monkeypatch.setattr(Directory, "seen", look)
        compact(at(tmp_path, "dir"), "test", InlineRunner(), file_bytes=1 << 30)
        return found

    monkeypatch.setattr(Directory, "seen", look_and_merge)

    assert counts(tmp_path, "dir") == buckets(expected(SOURCE))


@pytest.mark.parametrize("unit", ["ns", "ms"])
def test_times_and_rows_of_other_writers_are_counted(tmp_path: Path, unit: str) -> None:
    """A writer may choose another unit for times, or have none."""
    destination = loaded(tmp_path, "dir")
    before = counts(tmp_path, "dir")
    path = next(tmp_path.glob("data/topic=b/**/*.parquet"))
    table = pq.ParquetFile(path).read()
    at_ms = int(str(row("b", 0, 0)["timestamp"])) // 1000
    times = pa.array([at_ms, None], pa.timestamp("ms", "UTC")).cast(pa.timestamp(unit, "UTC"))
    named = pa.table({"timestamp": times, "offset": [1, 2]})
    pq.write_table(named, path.with_name("times.parquet"))
    pq.write_table(table.drop_columns(["timestamp"]), path.with_name("none.parquet"))

    after = counts(tmp_path, "dir")

    assert destination.log.newest() is not None
    more: Buckets = Counter({("b", at_ms // BUCKET * BUCKET): 1, ("b", 0): 1 + table.num_rows})
    assert after == before + more


def test_rows_before_the_report_need_not_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    destination = loaded(tmp_path, "dir")
    destination.log.expire(1 << 60)
    whole = counts(tmp_path, "dir")
    from_ms = sorted({bucket for _, bucket in whole})[-3]
    read = pq.ParquetFile.read_row_group
    groups = []

    def note(self, *arguments, **named):  # type: ignore[no-untyped-def]
        groups.append(1)
        return read(self, *arguments, **named)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", note)
    found = counts(tmp_path, "dir", from_ms=from_ms)

    assert 0 < len(groups) < len(destination.log.state().files)
    assert {key: count for key, count in found.items() if key[1] >= from_ms} == {
        key: count for key, count in whole.items() if key[1] >= from_ms
    }


def test_lag_is_that_of_the_commit_also_where_files_are_counted(tmp_path: Path) -> None:
    """A folder that was removed in one hour says nothing of how late the others were."""
    destination = loaded(tmp_path, "dir")
    by_commits = summed(loads.loaded(destination, InlineRunner(), bucket_ms=BUCKET))
    next(tmp_path.glob("data/topic=b/**/*.parquet")).unlink()

    by_files = summed(loads.loaded(destination, InlineRunner(), bucket_ms=BUCKET))

    assert all(by_files[key].seen_ms == by_commits[key].seen_ms for key in by_files)
