"""Standard output that cannot be written ends every command with one line and exit code 1."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.running.grids import some_of
from support.running.in_one import in_one

from kbroker.cli import command
from kbroker.cli.kafka.table import TOOLS
from kbroker.client import KafkaProducer
from kbroker.client.admin.topics import NewTopic, create_topics
from kbroker.client.connections.cluster import Cluster
from kbroker.testing import Broker

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[2]
# Of a file of functions: with its own words, none of which starts a broker or waits.
SCRIPTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
FULL, CLOSED, NONE = "full disk", "closed pipe", "no stdout"
REASONS = {FULL: "No space left on device", CLOSED: "Broken pipe", NONE: "Bad file descriptor"}


def ran(program: str, name: str, words: list[str], situation: str) -> tuple[int, str]:
    """Exit code and stderr of the command that starts with that function."""
    code = (
        f"import sys; sys.argv[0] = {name!r}; from kbroker import commands; "
        f"sys.exit(commands.{program}())"
    )
    argv = [sys.executable, "-c", code, *words]
    environment = {**os.environ, "PYTHONUNBUFFERED": ""}
    if situation == NONE:
        argv = ["sh", "-c", 'exec "$@" >&-', "sh", *argv]
        output = None
    elif situation == FULL:
        output = os.open("/dev/full", os.O_WRONLY)
    else:
        reader, output = os.pipe()
        os.close(reader)
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.PIPE, text=True,
            env=environment, timeout=120,
        )  # fmt: skip
    finally:
        if output is not None:
            os.close(output)
    return done.returncode, done.stderr


def check(program: str, name: str, words: list[str], situation: str = FULL) -> None:
    code, errors = ran(program, name, words, situation)
    check_lost(code, errors, f"{name}: cannot write to standard output: {REASONS[situation]}")


def check_lost(code: int, errors: str, said: str) -> None:
    """It is the last line; before it there may be what the command says in any case."""
    assert (code, errors.splitlines()[-1:]) == (1, [said])
    assert "Traceback" not in errors
    assert "Exception ignored" not in errors


Command = tuple[str, str, list[str]]


def programs() -> Iterator[Command]:
    """Function, name and words of each command."""
    for name, place in SCRIPTS.items():
        program = place.rpartition(":")[2]
        if program != "kafka_tool":
            yield program, name, ["--help"]


def verbs() -> list[Command]:
    return [("kbroker", "kbroker", [verb, "--help"]) for verb in command.VERBS]


def tools() -> list[Command]:
    return [("kafka_tool", name, ["--version"]) for name in TOOLS]


@in_one("program name words", [*programs(), *verbs()[::15], *tools()[::15]])
def test_every_command_ends_with_one_line_when_the_disk_is_full(
    program: str, name: str, words: list[str]
) -> None:
    """Text that nobody gets is no success: the file of ``kafka-topics --list > file`` is empty."""
    check(program, name, words)


@pytest.mark.slow
@in_one("program name words", [*verbs(), *tools()])
def test_every_verb_and_tool_ends_with_one_line_when_the_disk_is_full(
    program: str, name: str, words: list[str]
) -> None:
    check(program, name, words)


@pytest.mark.parametrize("situation", [FULL, CLOSED, NONE])
def test_help_is_lost_in_every_way(situation: str) -> None:
    check("kbroker", "kbroker", ["topic", "create", "--help"], situation)
    check("kafka_tool", "kafka-topics", ["--version"], situation)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as started:
        with Cluster(started.bootstrap) as cluster:
            create_topics(cluster, [NewTopic("orders", 1)])
        with KafkaProducer(bootstrap_servers=started.bootstrap) as producer:
            for _ in range(1000):
                producer.send("orders", b"x" * 1000)
        yield started


@pytest.mark.parametrize("situation", some_of([FULL, CLOSED, NONE], [FULL]))
def test_results_are_lost_in_every_way(broker: Broker, situation: str) -> None:
    where = ["--bootstrap-server", broker.bootstrap]
    check("kafka_tool", "kafka-topics", [*where, "--list"], situation)
    check("kafka_tool", "kafka-cluster", ["cluster-id", *where], situation)
    check("kafka_tool", "kafka-get-offsets", [*where, "--topic", "orders"], situation)
    check("kbroker", "kbroker", ["topic", "list", *where], situation)
    check("kbroker", "kbroker", ["consume", "orders", "--from-beginning", *where], situation)
    [log_dir] = [broker.data_dir]
    logs = [str(log_dir / "orders-0")]
    check("log", "kbroker-log", ["dump", "--print-data-log", *logs], situation)
    words = [*where, "--topic", "orders", "--from-beginning"]
    lost = ran("kafka_tool", "kafka-console-consumer", words, situation)
    said = "kafka-console-consumer: Unable to write to standard out, closing consumer."
    check_lost(*lost, said)
