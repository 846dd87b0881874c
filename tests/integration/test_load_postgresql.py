"""The command ``kbroker-load --sink jdbc`` with a PostgreSQL server; psycopg checks the result."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer
from support.clients.topics import create_topic
from support.spark.load_records import FIRST_MS, STEP_MS, all_places, produce, value_of
from support.spark.postgresql import postgresql

from kbroker.cli import command
from kbroker.spark.load.cli import main
from kbroker.testing import Broker

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server for the tests of this file, each with its own table and load."""
    with postgresql() as found:
        yield found


def ask(url: str, text: str) -> list[tuple[Any, ...]]:
    import psycopg

    with psycopg.connect(url) as connection:
        cursor = connection.execute(text.encode())
        return cursor.fetchall() if cursor.description else []


def run(broker: Broker, topic: str, url: str, table: str, *more: str) -> int:
    """``kbroker-load run`` in this process."""
    where = ["--bootstrap", broker.bootstrap, "--topics", topic, "--master", "none"]
    return main(["run", *where, *destination(url, table), *more])


def destination(url: str, table: str) -> list[str]:
    return ["--sink", "jdbc", "--dest", url, "--table", table, "--name", f"load-{table}"]


def places_in(url: str, table: str, topic: str) -> Counter[tuple[int, int]]:
    """All (partition, offset) pairs of the topic, with the content of each row checked."""
    names = '"partition", "offset", "timestamp", "key", "value", "headers"'
    rows = ask(url, f"SELECT {names} FROM {table} WHERE topic = '{topic}'")
    for partition, offset, time_ms, key, value, headers in rows:
        assert value == value_of(partition, offset)
        assert time_ms == FIRST_MS + offset * STEP_MS
        assert key == (None if offset % 7 == 0 else b"k%d" % offset)
        assert json.loads(headers or "null") == ([["h", str(offset)]] if offset % 5 == 0 else None)
    return Counter((partition, offset) for partition, offset, *_ in rows)


def test_load_continues_where_it_ended_and_status_tells_where(
    kbroker_broker: Broker, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    create_topic(kbroker_broker.bootstrap, "load-pg", 2)
    produce(kbroker_broker.bootstrap, "load-pg", [500, 30])

    assert run(kbroker_broker, "load-pg", url, "clicks") == 0
    first = capsys.readouterr().out
    produce(kbroker_broker.bootstrap, "load-pg", [100], first=500)
    assert run(kbroker_broker, "load-pg", url, "clicks") == 0
    second = capsys.readouterr().out
    assert run(kbroker_broker, "load-pg", url, "clicks") == 0
    third = capsys.readouterr().out
    assert main(["status", *destination(url, "clicks")]) == 0

    assert first.startswith("commit 1 load-pg: 530 rows") and first.endswith("lag 0\n")
    assert second.startswith("commit 2 load-pg: 100 rows")
    assert third == "nothing new\n"
    told = capsys.readouterr().out
    assert told.startswith("load-clicks: commit 2 of ") and "630 rows" in told
    assert "load-pg partition 0: loaded up to offset 600" in told
    assert "load-pg partition 1: loaded up to offset 30" in told
    assert places_in(url, "clicks", "load-pg") == all_places([600, 30])
    offsets = 'SELECT "partition", "offset" FROM kbroker_offsets WHERE load = \'load-clicks\''
    assert sorted(ask(url, offsets)) == [(0, 600), (1, 30)]
    assert ask(url, "SELECT count(*) FROM kbroker_staging_clicks") == [(0,)]


def test_verify_counts_rows_and_a_lost_commit_stops_a_run(
    kbroker_broker: Broker, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    create_topic(kbroker_broker.bootstrap, "load-pg-verify", 2)
    for first in (0, 200):
        produce(kbroker_broker.bootstrap, "load-pg-verify", [200, 20], first=first)
        assert run(kbroker_broker, "load-pg-verify", url, "counted") == 0
    assert main(["verify", *destination(url, "counted")]) == 0
    assert capsys.readouterr().out.endswith("\n440 rows, 0 findings\n")

    ask(url, 'DELETE FROM counted WHERE "partition" = 1 AND "offset" = 3')
    assert main(["verify", *destination(url, "counted")]) == 3
    said = capsys.readouterr().out
    assert "partition 1: 39 rows in counted, but the log says 40" in said
    ask(url, "DELETE FROM kbroker_commits WHERE load = 'load-counted' AND number = 2")
    assert run(kbroker_broker, "load-pg-verify", url, "counted") == 1

    assert "Restore the rows of kbroker_commits from number 2 on" in capsys.readouterr().err


def test_table_of_other_columns_is_refused_in_one_line(
    kbroker_broker: Broker, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    create_topic(kbroker_broker.bootstrap, "load-pg-other", 1)
    ask(url, "CREATE TABLE other (id integer)")

    assert run(kbroker_broker, "load-pg-other", url, "other") == 1

    (line,) = capsys.readouterr().err.splitlines()
    assert "the table other cannot take the rows of a load" in line


def test_table_may_have_a_word_of_sql_as_its_name(
    kbroker_broker: Broker, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Capitals name what they name without quotes: a table that an older load has created."""
    create_topic(kbroker_broker.bootstrap, "load-pg-order", 1)
    produce(kbroker_broker.bootstrap, "load-pg-order", [30])
    assert run(kbroker_broker, "load-pg-order", url, "order") == 0
    any_time = f"message.timestamp.after.max.ms={(1 << 63) - 1}"
    words = ["config", "set", "topic", "load-pg-order", any_time, "-b", kbroker_broker.bootstrap]
    assert command.main(words) == 0
    last = Producer({"bootstrap.servers": kbroker_broker.bootstrap})
    last.produce("load-pg-order", value=b"x", timestamp=(1 << 63) - 1, headers=[("h", b"\xff")])
    assert not last.flush(30)
    more = ["--name", "load-order", "--from-offsets", '{"load-pg-order": {"0": 10}}']

    assert run(kbroker_broker, "load-pg-order", url, "ORDER", *more) == 0
    assert run(kbroker_broker, "load-pg-order", url, "Order", "--name", "load-order") == 0

    found = ask(url, 'SELECT "timestamp", headers FROM "order" ORDER BY "offset" DESC')
    assert found[0] == ((1 << 63) - 1, '[["h", {"base64": "/w=="}]]')
    assert len(found) == 31
    assert main(["verify", *destination(url, "order")]) == 0
    assert capsys.readouterr().out.endswith("\n31 rows, 0 findings\n")


def test_rewind_by_offsets_loads_again_and_replaces(
    kbroker_broker: Broker, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rows that were damaged in the table are repaired from the named offset on, and only there."""
    create_topic(kbroker_broker.bootstrap, "load-pg-again", 2)
    produce(kbroker_broker.bootstrap, "load-pg-again", [250, 20])
    assert run(kbroker_broker, "load-pg-again", url, "again") == 0
    produce(kbroker_broker.bootstrap, "load-pg-again", [150], first=250)
    assert run(kbroker_broker, "load-pg-again", url, "again") == 0
    ask(url, 'UPDATE again SET value = \'spoilt\' WHERE "partition" = 0 AND "offset" >= 250')
    ask(url, 'DELETE FROM again WHERE "partition" = 1')
    capsys.readouterr()

    offsets = '{"load-pg-again": {"0": 250}}'
    assert run(kbroker_broker, "load-pg-again", url, "again", "--from-offsets", offsets) == 0

    assert "150 rows again" in capsys.readouterr().out
    assert places_in(url, "again", "load-pg-again") == all_places([400])
    offsets = '{"load-pg-again": {"1": 0}}'
    assert run(kbroker_broker, "load-pg-again", url, "again", "--from-offsets", offsets) == 0
    assert places_in(url, "again", "load-pg-again") == all_places([400, 20])
