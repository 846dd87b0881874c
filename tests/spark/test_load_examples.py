"""The examples of docs/load.md as written there, with other paths."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from support.clients.topics import create_topic, read_topic
from support.spark.load_records import produce

from kbroker.spark.load.cli import main
from kbroker.testing import Broker

pytestmark = pytest.mark.integration

PAGE = Path(__file__).resolve().parents[2] / "docs/load.md"


def example(word: str, **changes: str) -> str:
    """The Python block that contains ``word``, with texts replaced."""
    (found,) = [
        block
        for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
        if word in block
    ]
    for old, new in changes.items():
        assert old in found
        found = found.replace(old, new)
    return str(found)


@pytest.fixture
def lake(kbroker_broker: Broker, topic: str, tmp_path: Path) -> Path:
    """A topic of two partitions, loaded by the command."""
    create_topic(kbroker_broker.bootstrap, topic, 2)
    produce(kbroker_broker.bootstrap, topic, [400, 100])
    where = ["--bootstrap", kbroker_broker.bootstrap, "--topics", topic]
    assert main(["run", *where, "--dest", str(tmp_path), "--master", "none"]) == 0
    return tmp_path


def test_loaded_topic_is_queried_with_duckdb(lake: Path, topic: str) -> None:
    pytest.importorskip("duckdb")
    text = example("import duckdb", **{"/data/lake": str(lake)})

    found = eval(text.replace("import duckdb", "").strip(), {"duckdb": __import__("duckdb")})

    assert [(row[0], str(row[1]), *row[2:]) for row in found] == [(topic, "2026-01-01", 500, 399)]


@pytest.mark.slow
def test_loaded_topic_is_queried_with_spark(
    spark: Any, lake: Path, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    exec(example('groupBy("dt"', **{"/data/lake": str(lake), "clicks": topic}), {"spark": spark})

    hours = re.findall(r"\|2026-01-01\| *(\d+)\| *(\d+)\|", capsys.readouterr().out)
    assert sorted((int(hour), int(count)) for hour, count in hours) == [
        (0, 280),  # 180 of partition 0, all of the other
        (1, 180),
        (2, 40),
    ]


@pytest.mark.slow
def test_topic_is_filled_from_parquet(
    spark: Any, kbroker_broker: Broker, lake: Path, topic: str
) -> None:
    create_topic(kbroker_broker.bootstrap, f"{topic}-again", 2)
    places = {
        "/data/lake": str(lake),
        "localhost:9092": kbroker_broker.bootstrap,
        "clicks": topic,
        "2026-11-21": "2026-01-01",
    }

    exec(example('write.format("kbroker")', **places), {"spark": spark})

    def content(name: str) -> list[tuple[Any, ...]]:
        records = read_topic(kbroker_broker.bootstrap, name)
        return sorted((one.value, one.key or b"", str(one.headers)) for one in records)

    assert content(f"{topic}-again") == content(topic)
