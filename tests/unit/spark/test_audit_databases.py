"""Loads counted in a database by its rows, with other loads in it."""

from __future__ import annotations

import sqlite3
from collections import Counter
from pathlib import Path

import pytest
from support.spark.load_source import MadeUp, row

from kbroker.spark.audit import databases
from kbroker.spark.audit.report import summed
from kbroker.spark.direct import InlineRunner
from kbroker.spark.load.commits import LoadError
from kbroker.spark.load.database import Database
from kbroker.spark.load.engine import Load, LoadSettings

pytestmark = pytest.mark.unit

BUCKET = 600_000


def load(root: Path, source: MadeUp, name: str = "test", table: str = "rows") -> Load:
    destination = Database(url(root), table, name)
    destination.prepare()
    job = Load(source, destination, InlineRunner(), LoadSettings(load=name, commit_bytes=256 * 100))
    job.catch_up()
    return job


def url(root: Path) -> str:
    return f"sqlite:{root}/warehouse.db"


def counts(root: Path, *names: str, bucket_ms: int = BUCKET) -> dict[tuple[str, int], int]:
    found = summed(databases.loaded(url(root), names, bucket_ms=bucket_ms))
    return {(topic, bucket): one.count for (topic, bucket, _), one in found.items()}


def expected(topic: str, ends: list[int], bucket_ms: int = BUCKET) -> Counter[tuple[str, int]]:
    found: Counter[tuple[str, int]] = Counter()
    for partition, end in enumerate(ends):
        for offset in range(end):
            time_ms = max(0, int(str(row(topic, partition, offset)["timestamp"])) // 1000)
            found[topic, time_ms // bucket_ms * bucket_ms] += 1
    return found


def change(root: Path, text: str) -> None:
    connection = sqlite3.connect(root / "warehouse.db")
    connection.execute(text)
    connection.commit()
    connection.close()


def test_rows_that_were_deleted_or_copied_by_hand_count_as_readers_see_them(tmp_path: Path) -> None:
    """Commits tell what was loaded, and nothing of what has become of it."""
    load(tmp_path, MadeUp.of({"a": [700, 3]}))
    names = 'topic, "partition", "offset", timestamp, timestampType, key, value, headers, error'
    other = names.replace('"offset"', '"offset" + 100000', 1)
    change(tmp_path, 'DELETE FROM rows WHERE "partition" = 1 OR "offset" < 100')
    change(tmp_path, f'INSERT INTO rows ({names}) SELECT {other} FROM rows WHERE "offset" = 650')

    wanted = expected("a", [700]) - expected("a", [100])
    (copied,) = expected("a", [651]) - expected("a", [650])
    assert counts(tmp_path) == wanted + Counter([copied])

    change(tmp_path, "DELETE FROM rows")
    assert counts(tmp_path) == {}


def test_lag_is_that_of_the_commits(tmp_path: Path) -> None:
    job = load(tmp_path, MadeUp.of({"a": [700]}))
    log = Database(url(tmp_path), "rows", "test").log
    told = {one.written_ms for one in log.after(0)}

    found = databases.loaded(url(tmp_path), (), bucket_ms=BUCKET)

    assert job.catch_up() == []
    assert {one.seen_ms for one in found} <= told
    latest = {bucket: one.written_ms for one in log.after(0) for bucket in one.counts.get("a", {})}
    assert {one.bucket_ms: one.seen_ms for one in found} == latest


def test_rows_before_the_report_need_not_be_counted(tmp_path: Path) -> None:
    load(tmp_path, MadeUp.of({"a": [700]}))
    whole = counts(tmp_path)
    from_ms = sorted(bucket for _, bucket in whole)[5]

    found = databases.loaded(url(tmp_path), (), bucket_ms=BUCKET, from_ms=from_ms)

    assert {one.bucket_ms: one.count for one in found} == {
        bucket: count for (_, bucket), count in whole.items() if bucket >= from_ms
    }


@pytest.mark.parametrize("how", ["rewound", "expired", "other buckets"])
def test_rows_are_counted_where_commits_cannot_tell(tmp_path: Path, how: str) -> None:
    """Other rows in the same table belong to another load, and do not count."""
    load(tmp_path, MadeUp.of({"b": [90]}), "other")
    job = load(tmp_path, MadeUp.of({"a": [700, 3]}))
    size = BUCKET
    if how == "rewound":
        job.rewind({("a", 0): 350})
    elif how == "expired":
        assert Database(url(tmp_path), "rows", "test").log.expire(1 << 60) > 1
    else:
        size = 3_600_000

    assert counts(tmp_path, "test", bucket_ms=size) == expected("a", [700, 3], size)


def test_all_loads_of_a_database_are_counted_unless_one_is_named(tmp_path: Path) -> None:
    load(tmp_path, MadeUp.of({"a": [100]}), "one")
    load(tmp_path, MadeUp.of({"b": [50]}), "two", "others")

    assert counts(tmp_path) == expected("a", [100]) + expected("b", [50])
    assert counts(tmp_path, "two") == expected("b", [50])


def test_topic_in_two_loads_is_no_count_until_one_is_named(tmp_path: Path) -> None:
    load(tmp_path, MadeUp.of({"a": [100]}), "one")
    load(tmp_path, MadeUp.of({"a": [50]}), "two", "others")

    with pytest.raises(LoadError, match=r"has the topic a in the loads one and two.*--name"):
        counts(tmp_path)

    assert counts(tmp_path, "two") == expected("a", [50])


def test_what_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"warehouse\.db is not the destination of a load"):
        counts(tmp_path)
    assert not list(tmp_path.iterdir())

    load(tmp_path, MadeUp.of({"a": [5]}), "one")

    with pytest.raises(LoadError, match="has no load two; it has one"):
        counts(tmp_path, "two")
