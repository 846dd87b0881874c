"""``kbroker start``, and ``kbroker`` alone: a broker with its data in the user's data directory."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kbroker.cli import command
from kbroker.cli.verbs import start
from kbroker.testing import wait_until
from kbroker.testing.ports import HeldPort

pytestmark = pytest.mark.integration

PROGRAM = "import sys; from kbroker.commands import kbroker; sys.exit(kbroker())"
NOTHING = {"environment": False, "config": None, "data": None, "override": []}


def words(**given: object) -> list[str]:
    return start.arguments(argparse.Namespace(**{**NOTHING, **given}))


@pytest.fixture(autouse=True)
def _home(monkeypatch, tmp_path):
    monkeypatch.delenv("KBROKER_DATA", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))


def test_alone_it_starts_with_the_users_data_directory(monkeypatch, tmp_path):
    """Nobody else can connect to what was started without a configuration."""
    given: list[list[str]] = []
    monkeypatch.setattr("kbroker.cli.start.main", lambda words: given.append(words) or 3)

    assert command.main([]) == 3

    place = tmp_path / "share" / "kbroker"
    (words_given,) = given
    assert words_given[::2] == ["--override"] * 3
    assert words_given[1::2] == [
        f"log.dirs={place}",
        "listeners=PLAINTEXT://localhost:9092",
        "group.initial.rebalance.delay.ms=0",
    ]
    assert place.stat().st_mode & 0o777 == 0o700


def test_configuration_file_decides_unless_a_directory_is_given(tmp_path):
    assert words(config="x.properties") == ["--config", "x.properties"]
    assert words(config="x.properties", data=str(tmp_path), override=["broker.id=7"]) == [
        "--config",
        "x.properties",
        "--override",
        f"log.dirs={tmp_path}",
        "--override",
        "broker.id=7",
    ]


def test_variable_names_the_directory(monkeypatch, tmp_path):
    monkeypatch.setenv("KBROKER_DATA", str(tmp_path / "named"))

    assert words()[1] == f"log.dirs={tmp_path / 'named'}"
    assert words(data=str(tmp_path / "option"))[1] == f"log.dirs={tmp_path / 'option'}"


def test_directory_that_cannot_be_created_is_named(capsys, tmp_path):
    file = tmp_path / "file"
    file.touch()

    assert command.main(["start", "-d", str(file / "below")]) == 1

    assert capsys.readouterr().err == (
        f"kbroker start: cannot create {file / 'below'}: Not a directory\n"
    )


def test_started_broker_serves_and_stops(tmp_path):
    data, log_path = tmp_path / "data", tmp_path / "log"
    held = HeldPort()
    settings = (f"listeners=PLAINTEXT://{held.address}", "metrics.port=0", "num.io.threads=1")
    given = [part for each in settings for part in ("--override", each)]
    with open(log_path, "wb") as log_file:
        broker = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, "start", "-d", str(data), *given],
            stderr=log_file,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        )
    try:
        wait_until(
            lambda: command.main(["health", "-b", held.address, "--timeout", "1"]) == 0,
            60,
            "the broker is healthy",
        )
        assert command.main(["topic", "create", "t", "-p", "1", "-b", held.address]) == 0
        broker.send_signal(signal.SIGINT)
        assert broker.wait(60) == 0, log_path.read_text()
    finally:
        broker.kill()
        broker.wait()
        held.release()
    assert (data / "t-0").is_dir()
