"""Rows, commits and offsets in one database, SQLite here and PostgreSQL in tests/integration."""

from __future__ import annotations

import base64
import json
import sqlite3
from pathlib import Path

import pyarrow as pa
import pytest
from support.spark.load_source import MadeUp, batch, load, row

from kbroker.spark.audit.databases import loaded
from kbroker.spark.direct import InlineRunner
from kbroker.spark.load.cli import main
from kbroker.spark.load.commits import TIME_MS_MAX, LoadError, LostRaceError
from kbroker.spark.load.database import Database
from kbroker.spark.load.decode import JsonDecoder
from kbroker.spark.load.destination import names_database
from kbroker.spark.load.engine import Load, LoadSettings
from kbroker.spark.plan import OffsetRange

pytestmark = pytest.mark.unit


def at(root: Path) -> Database:
    return Database(f"sqlite:{root}/warehouse.db", "rows", "test")


def ask(root: Path, text: str) -> list[tuple[object, ...]]:
    connection = sqlite3.connect(root / "warehouse.db")
    try:
        return connection.execute(text).fetchall()
    finally:
        connection.close()


def test_load_puts_rows_and_offsets_side_by_side(tmp_path: Path) -> None:
    load(MadeUp.of({"a": [250, 3]}), at(tmp_path))
    load(MadeUp.of({"a": [300, 3]}), at(tmp_path))

    assert ask(tmp_path, 'SELECT "partition", "offset" FROM kbroker_offsets ORDER BY 1') == [
        (0, 300),
        (1, 3),
    ]
    assert ask(tmp_path, 'SELECT count(*), sum("offset") FROM rows WHERE "partition" = 0') == [
        (300, sum(range(300)))
    ]
    assert (
        ask(tmp_path, 'SELECT value FROM rows WHERE "offset" = 299')[0][0]
        == (row("a", 0, 299)["value"])
    )
    assert ask(tmp_path, "SELECT count(*) FROM kbroker_staging_rows") == [(0,)]


def test_rewind_replaces_rows_in_the_transaction_of_the_new_ones(tmp_path: Path) -> None:
    source = MadeUp.of({"a": [300]})
    load(source, at(tmp_path), records_max=100)
    load(source, at(tmp_path))

    Load(source, at(tmp_path), InlineRunner(), LoadSettings(load="test")).rewind({("a", 0): 150})

    assert ask(tmp_path, 'SELECT count(*), count(DISTINCT "offset") FROM rows') == [(300, 300)]


def test_run_that_another_overtook_commits_nothing(tmp_path: Path) -> None:
    source = MadeUp.of({"a": [300]})
    slow = at(tmp_path)
    slow.prepare()

    class Overtaken(InlineRunner):
        def run(self, tasks, work, label):  # type: ignore[no-untyped-def]
            answers = super().run(tasks, work, label)
            load(source, at(tmp_path))
            return answers

    with pytest.raises(LostRaceError):
        Load(source, slow, Overtaken(), LoadSettings(load="test")).catch_up()

    assert ask(tmp_path, "SELECT count(*) FROM rows") == [(300,)]


def test_second_lock_is_refused(tmp_path: Path) -> None:
    first, second = at(tmp_path), at(tmp_path)

    with first.locked(), pytest.raises(LoadError, match="another run"), second.locked():
        pass


def test_records_that_cannot_be_decoded_go_to_the_error_table(tmp_path: Path) -> None:
    source = MadeUp({"a": [(0, 20)]}, {("a", 0): {7: b"?"}})
    destination = at(tmp_path)
    destination.prepare()
    decoder = JsonDecoder(pa.schema([("id", pa.int64())]))

    Load(source, destination, InlineRunner(), LoadSettings(load="test"), decoder=decoder).catch_up()

    assert ask(tmp_path, 'SELECT "offset", value FROM rows_errors') == [(7, b"?")]
    assert ask(tmp_path, 'SELECT value FROM rows WHERE "offset" = 3') == [(b'{"id": 3}',)]


def test_rewind_over_records_that_cannot_be_decoded_replaces_their_errors(tmp_path: Path) -> None:
    source = MadeUp({"a": [(0, 20)]}, {("a", 0): {7: b"?", 15: b"!"}})
    destination = at(tmp_path)
    destination.prepare()
    decoder = JsonDecoder(pa.schema([("id", pa.int64())]))
    job = Load(source, destination, InlineRunner(), LoadSettings(load="test"), decoder=decoder)
    job.catch_up()

    assert job.rewind({("a", 0): 0}) is not None

    assert ask(tmp_path, 'SELECT "offset" FROM rows_errors ORDER BY 1') == [(7,), (15,)]
    assert ask(tmp_path, "SELECT count(*) FROM rows") == [(18,)]


@pytest.mark.parametrize("url", ["mysql://x", "sqlite:", "warehouse.db", ""])
def test_unknown_database_is_refused_with_what_to_write(url: str) -> None:
    with pytest.raises(LoadError, match="write sqlite:PATH or postgresql://"):
        Database(url, "rows", "test")


@pytest.mark.parametrize(
    ("place", "says"),
    [
        ("postgresql://h/d", "is a database, not a folder; use --sink jdbc"),
        ("sqlite:w.db", "is a database, not a folder; use --sink jdbc"),
        ("hdfs://h/lake", "an address of hdfs: give the path of a folder, mounted"),
    ],
)
def test_url_where_a_folder_is_wanted_is_refused(
    place: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in ("status", "verify"):
        assert main([command, "--dest", place]) == 1
        assert says in capsys.readouterr().err


@pytest.mark.parametrize("table", ["1a", "a b", "a;b", "", "t" * 40])
def test_name_that_no_table_can_have_is_refused(tmp_path: Path, table: str) -> None:
    with pytest.raises(LoadError, match=r"write letters, digits and _|write at most 39"):
        Database(f"sqlite:{tmp_path}/w.db", table, "test")


def test_refusal_of_the_database_is_told_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"w.db reports an error: object name reserved"):
        Database(f"sqlite:{tmp_path}/w.db", "sqlite_rows", "test").prepare()


@pytest.mark.parametrize("table", ["kbroker_commits", "KBROKER_Offsets", "kbroker_staging_rows"])
def test_tables_of_the_log_take_no_rows(tmp_path: Path, table: str) -> None:
    with pytest.raises(LoadError, match="is a table of kbroker-load itself"):
        Database(f"sqlite:{tmp_path}/w.db", table, "test")


@pytest.mark.parametrize("table", ["order", "SELECT", "group", "values", "Straße"])
def test_table_may_have_a_word_of_sql_as_its_name(tmp_path: Path, table: str) -> None:
    """Loaded, loaded again with values that cannot be decoded, verified and counted."""
    url = f"sqlite:{tmp_path}/warehouse.db"
    source = MadeUp({"a": [(0, 200)]}, {("a", 0): {7: b"?"}})
    destination = Database(url, table, "test")
    destination.prepare()
    decoder = JsonDecoder(pa.schema([("id", pa.int64())]))
    job = Load(source, destination, InlineRunner(), LoadSettings(load="test"), decoder=decoder)
    job.catch_up()
    job.rewind({("a", 0): 5})

    assert list(destination.verify()) == []
    assert sum(one.count for one in loaded(url, (), bucket_ms=600_000)) == 199
    assert ask(tmp_path, f'SELECT count(*) FROM "{table}"') == [(199,)]
    assert ask(tmp_path, f'SELECT "offset" FROM "{table}_errors"') == [(7,)]


def test_table_of_other_columns_is_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "warehouse.db")
    connection.execute('CREATE TABLE rows (topic TEXT, "partition" INTEGER, "offset" INTEGER)')
    connection.close()

    with pytest.raises(LoadError, match=r"rows cannot take the rows of a load.*--table"):
        at(tmp_path).prepare()


def test_load_that_is_in_another_table_is_refused(tmp_path: Path) -> None:
    """It would continue there: what is loaded would be in neither log nor table."""
    load(MadeUp.of({"a": [30]}), at(tmp_path))
    url = f"sqlite:{tmp_path}/warehouse.db"

    with pytest.raises(LoadError, match=r"in the table rows.*use --table rows, or another --name"):
        Database(url, "others", "test").prepare()

    Database(url, "ROWS", "test").prepare()
    Database(url, "others", "another").prepare()


def test_headers_are_json_in_which_no_byte_is_lost(tmp_path: Path) -> None:
    r"""The byte ff and the text \xff are two things."""
    destination = at(tmp_path)
    destination.prepare()
    given = [("a", b"\xc3\xa9"), ("b", b"\xff\x00\xfe"), ("b", b"\\xff\0"), ("c", None), ("c", b"")]
    headers = pa.array([[{"key": k, "value": v} for k, v in given]])
    writer = destination.task_sink("run", {}).open(OffsetRange("a", 0, 0, 1), "try")

    writer.write(batch("a", 0, [0]).append_column("headers", headers))
    writer.finish()

    ((text,),) = ask(tmp_path, "SELECT headers FROM kbroker_staging_rows")
    assert json.loads(str(text)) == [
        ["a", "é"],
        ["b", {"base64": base64.b64encode(b"\xff\x00\xfe").decode()}],
        ["b", "\\xff\0"],
        ["c", None],
        ["c", ""],
    ]


@pytest.mark.parametrize("time_ms", [(1 << 63) - 1, -(1 << 63), -1, 5])
def test_times_are_those_of_the_records_and_their_buckets_those_of_files(
    tmp_path: Path, time_ms: int
) -> None:
    destination = at(tmp_path)
    destination.prepare()
    writer = destination.task_sink("run", {}).open(OffsetRange("a", 0, 0, 1), "try")
    times = pa.array([time_ms], pa.timestamp("ms", "UTC"))

    writer.write(batch("a", 0, [0]).set_column(5, "timestamp", times))
    written = writer.finish()

    assert ask(tmp_path, "SELECT timestamp FROM kbroker_staging_rows") == [(time_ms,)]
    (bucket,) = written.counts
    assert bucket == (0 if time_ms < 600_000 else TIME_MS_MAX // 600_000 * 600_000)
    assert (written.files[0].min_ms, written.files[0].max_ms) == (time_ms, time_ms)


def test_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "warehouse.db").write_text("topic,partition,offset\n" * 100)

    with pytest.raises(LoadError, match=r"cannot open the database .*: file is not a database"):
        at(tmp_path).prepare()


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:hush@127.0.0.1:1/w",
        "postgresql://127.0.0.1:1/w?user=me&password=hush",
        "jdbc:postgresql://127.0.0.1:1/w?password=hush@home",
        "postgresql://me:hush%zz@127.0.0.1:1/w",
        "postgresql://me:hu@hush@127.0.0.1:1/w",
        "postgresql://me:hush/hush@127.0.0.1:1/w",
        "postgresql://me:1/hush@127.0.0.1:1/w",
        "postgresql:me:hush@127.0.0.1:1/w",
        "mysql://me:hush@127.0.0.1:1/w",
        "host=127.0.0.1 port=1 user=me password=hush",
    ],
)
def test_password_of_a_database_is_never_told(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("psycopg")

    with pytest.raises(LoadError) as raised:
        Database(url, "rows", "test").prepare()
    assert main(["status", "--dest", url, "--sink", "jdbc"]) == 1
    if names_database(url):
        for command in ("status", "verify", "recover", "compact", "expire"):
            assert main([command, "--dest", url]) == 1

    said = capsys.readouterr()
    assert "hush" not in f"{raised.value} {said.err} {said.out}"
    assert "postgresql://" in str(raised.value)
