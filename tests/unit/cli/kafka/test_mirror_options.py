"""What ``kafka-mirror-maker`` says of options and settings that are no use."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker.cli.kafka import table
from kbroker.cli.kafka.mirror_maker import _client
from kbroker.client.consumer.consumer_settings import SETTINGS

pytestmark = pytest.mark.unit

NAME = "kafka-mirror-maker"


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    consumer, producer = tmp_path / "consumer", tmp_path / "producer"
    consumer.write_text("bootstrap.servers=127.0.0.1:1\ngroup.id=g\n")
    producer.write_text("bootstrap.servers=127.0.0.1:1\n")
    return ["--consumer.config", str(consumer), "--producer.config", str(producer)]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "whitelist must be specified"),
        (["--whitelist", "a("], "a( is an invalid regex"),
        (["--whitelist", "a", "--num.streams", "0"], "num.streams must be at least 1"),
        (
            ["--whitelist", "a", "--num.streams", "x"],
            "Cannot parse argument 'x' of option num.streams",
        ),
        (["--whitelist", "a", "--message.handler", "no.such"], "cannot load no.such"),
    ],
)
def test_wrong_options_are_named(files, capsys, words, said):
    assert table.main([*files, *words], NAME) == 1
    captured = capsys.readouterr()
    assert captured.out == "" and said in captured.err


def test_files_are_needed(files, capsys):
    assert table.main(["--whitelist", "a", *files[2:]], NAME) == 1
    assert "consumer.config" in capsys.readouterr().err


def test_consumer_needs_a_group(tmp_path, files, capsys):
    Path(files[1]).write_text("bootstrap.servers=127.0.0.1:1\n")
    assert table.main([*files, "--whitelist", "a"], NAME) == 1
    assert "group.id: a mirror reads as a member of a group" in capsys.readouterr().err


def test_files_of_kafka_08_are_read():
    old = {
        "metadata.broker.list": "a:1,b:2",
        "auto.offset.reset": "smallest",
        "group.id": "g",
        "zookeeper.session.timeout.ms": "1",
    }
    assert _client(old, SETTINGS) == {
        "bootstrap.servers": "a:1,b:2",
        "auto.offset.reset": "earliest",
        "group.id": "g",
    }
