"""kill -9 of a load at every failpoint, for every kind of destination, without Spark or a broker.

The same with Spark and a broker is in ``tests/spark``; what counts is looked at in the plain
directory by pyarrow, as any other reader of it would.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.spark import load_source
from support.spark.load_source import MadeUp, expected, rows_in, rows_in_table
from support.spark.postgresql import postgresql

from kbroker.spark.load import points
from kbroker.spark.load.dialects import dialect_of

pytestmark = pytest.mark.fault

ENDS = '{"a": [900, 40], "b": [300]}'
SOURCE = MadeUp.of({"a": [900, 40], "b": [300]})

LIBRARIES = {"delta": "deltalake", "iceberg": "pyiceberg"}

# The failpoints in a run of all tests except the slow ones, for destinations that share the rest.
SOME = [
    one if one == "committed" else pytest.param(one, marks=pytest.mark.slow)
    for one in points.POINTS
]


# Imports are most of what a load costs: all are forked from a process that has done them.
# (pyarrow imports pandas with the first rows.)
PROCESSES = multiprocessing.get_context("forkserver")
IMPORTED = ["support.spark.load_source", "pandas", "deltalake", "kbroker.spark.load.iceberg_folder"]


@pytest.fixture(scope="module", autouse=True)
def imported() -> Iterator[None]:
    """The process that loads are forked from starts with the first of them, and finds the tests."""
    tests = Path(__file__).resolve().parents[1]
    PROCESSES.set_forkserver_preload(IMPORTED)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(tests), str(tests.parent)]))
        yield


def crash(root: Path, point: str, kind: str = "dir", does: str = "load") -> int:
    """A load in its own process group that dies at ``point``; returns its exit code."""
    load = PROCESSES.Process(target=run_load, args=(point, [str(root), ENDS, kind, does]))
    load.start()
    load.join()
    assert load.exitcode is not None
    return load.exitcode


def run_load(point: str, arguments: list[str]) -> None:
    os.setsid()
    os.environ[points.VARIABLE] = point
    load_source.main(arguments)


def rows_of(root: Path, kind: str) -> Counter[tuple[str, int, int]]:
    """The rows that a reader of the destination sees."""
    name, _, where = kind.partition(":")
    if name in LIBRARIES:
        return rows_in_table(root, name)
    if name == "dir":
        return rows_in(root)
    dialect = dialect_of(f"{name}:{where}")
    found = Counter(dialect.query('SELECT "topic", "partition", "offset" FROM rows'))
    dialect.close()
    return found


def kill_and_check(root: Path, kind: str, point: str, nth: int) -> None:
    """A load that dies, one that does not, and the result."""
    died = crash(root, f"{point}:{nth}", kind)
    survived = crash(root, "", kind)

    # "recovered" is passed once in a run.
    assert died == (0 if (point, nth) == ("recovered", 2) else -signal.SIGKILL)
    assert survived == 0
    assert rows_of(root, kind) == expected(SOURCE)


@pytest.mark.parametrize("nth", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("point", points.POINTS)
def test_kill_at_a_point_leaves_each_record_once_after_the_next_run(
    tmp_path: Path, point: str, nth: int
) -> None:
    kill_and_check(tmp_path, "dir", point, nth)

    assert not list((tmp_path / "_kbroker/staging").iterdir())
    assert not list(tmp_path.rglob("*.tmp"))


@pytest.mark.parametrize("point", SOME)
@pytest.mark.parametrize("table", LIBRARIES)
def test_kill_at_a_point_leaves_each_record_once_in_the_table(
    tmp_path: Path, table: str, point: str
) -> None:
    pytest.importorskip(LIBRARIES[table])

    kill_and_check(tmp_path, table, point, 1)


@pytest.mark.parametrize("nth", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("point", points.ICEBERG_POINTS)
def test_kill_while_the_iceberg_table_is_changed_leaves_each_record_once(
    tmp_path: Path, point: str, nth: int
) -> None:
    """The library writes several files, one of which makes the change visible."""
    pytest.importorskip("pyiceberg")

    kill_and_check(tmp_path, "iceberg", point, nth)


@pytest.mark.parametrize("point", SOME)
def test_kill_at_a_point_leaves_each_record_once_in_sqlite(tmp_path: Path, point: str) -> None:
    kill_and_check(tmp_path, f"sqlite:{tmp_path}/warehouse.db", point, 2)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("kind", "does"),
    [
        *(("dir", "rewind"), ("dir", "compact"), ("delta", "rewind"), ("delta", "compact")),
        *(("iceberg", "rewind"), ("iceberg", "compact")),
        ("sqlite", "rewind"),
    ],
)
def test_kill_of_who_replaces_files_leaves_each_record_once(
    tmp_path: Path, kind: str, does: str
) -> None:
    """At each failpoint: commits that add and remove. A merge has fewer of them."""
    if kind in LIBRARIES:
        pytest.importorskip(LIBRARIES[kind])
    died = []
    for point in points.POINTS:
        for nth in (1, 3):
            root = tmp_path / f"{point}-{nth}"
            where = kind if kind != "sqlite" else f"sqlite:{tmp_path}/{point}-{nth}.db"
            assert crash(root, "", where) == 0

            died.append(crash(root, f"{point}:{nth}", where, does))
            before = rows_of(root, where)
            assert crash(root, "", where) == 0

            assert rows_of(root, where) == expected(SOURCE), (point, nth)
            assert kind == "dir" or before == expected(SOURCE), (point, nth)
    assert set(died) == {0, -signal.SIGKILL}
    assert died.count(-signal.SIGKILL) > len(points.POINTS) // 2


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_kill_at_each_point_leaves_each_record_once_in_postgresql(tmp_path: Path) -> None:
    """One server for all of them, with a new database each time."""
    with postgresql() as url:
        for nth, point in enumerate(points.POINTS):
            kill_and_check(tmp_path, url, point, 1 + nth % 2)
            dialect = dialect_of(url)
            with dialect.transaction() as run:
                run("DROP SCHEMA public CASCADE", ())
                run("CREATE SCHEMA public", ())
            dialect.close()
