"""``kbroker config`` on a real broker."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from kbroker.cli import command
from kbroker.testing import Broker, wait_until

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(sasl_enabled_mechanisms="PLAIN") as started:
        yield started


@pytest.fixture
def run(broker, capsys, monkeypatch):
    monkeypatch.setenv("KBROKER_BOOTSTRAP_SERVER", broker.bootstrap)

    def call(*words: str) -> tuple[int, str, str]:
        code = command.main(words)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def own(run, kind: str, name: str) -> dict[str, str]:
    code, out, err = run("config", "get", kind, name, "-o", "json")
    assert (code, err) == (0, "")
    return {row["name"]: row["value"] for row in json.loads(out)}


@pytest.mark.parametrize(
    ("kind", "name", "setting", "value"),
    [
        ("topic", "t", "retention.ms", "7000"),
        ("broker", "0", "log.retention.ms", "8000"),
        ("broker", "default", "log.retention.bytes", "9000"),
        ("group", "g", "consumer.session.timeout.ms", "50000"),
    ],
)
def test_setting_is_set_shown_and_unset(run, kind, name, setting, value):
    run("topic", "create", "t", "--if-not-exists")

    shown = "all brokers" if name == "default" else f"{kind} {name}"
    assert run("config", "set", kind, name, f"{setting}={value}") == (
        0,
        f"changed {shown}: {setting}\n",
        "",
    )
    wait_until(lambda: own(run, kind, name).get(setting) == value, 20, "it is shown")
    assert run("config", "unset", kind, name, setting)[0] == 0
    wait_until(lambda: setting not in own(run, kind, name), 20, "it is gone")


def test_nothing_set_is_a_sentence_and_all_shows_the_rest(run):
    run("topic", "create", "plain")

    assert run("config", "get", "topic", "plain")[1] == (
        "no settings of topic plain were set; --all shows all\n"
    )
    rows = run("config", "get", "topic", "plain", "--all")[1].splitlines()
    assert rows[0].split() == ["NAME", "VALUE", "SOURCE"]
    assert ["retention.ms", "604800000", "DEFAULT_CONFIG"] in [row.split() for row in rows]
    only = run("config", "get", "topic", "plain", "segment.ms", "-o", "json")[1]
    assert [row["name"] for row in json.loads(only)] == ["segment.ms"]


def test_dry_run_changes_nothing(run):
    run("topic", "create", "dry")

    assert run("config", "set", "topic", "dry", "retention.ms=1", "--dry-run")[0] == 0
    assert own(run, "topic", "dry") == {}


def test_secret_is_hidden(run):
    rows = json.loads(run("config", "get", "broker", "0", "--all", "-o", "json")[1])

    values = {row["name"]: row["value"] for row in rows}
    assert values["ssl.key.password"] == "(hidden)"


@pytest.mark.parametrize(
    ("words", "code", "line"),
    [
        ("get topic t retention.mss", 2, "no setting 'retention.mss' of a topic: did you mean "
         "retention.ms?"),
        ("set topic t retention.ms", 2, "'retention.ms': write NAME=VALUE"),
        ("unset broker 0 log.retention.mss", 2, "did you mean log.retention.ms?"),
        ("get broker first", 2, "broker 'first': write its id, or 'default' for all brokers"),
        ("get broker 77", 1, "no broker 77: there are 0"),
        ("get topics t", 2, "invalid choice: 'topics'"),
        ("get topic nowhere", 1, "configs of nowhere: UNKNOWN_TOPIC_OR_PARTITION"),
        ("set topic t retention.ms=soon", 1, "soon"),
    ],
)  # fmt: skip
def test_wrong_use_is_one_line(run, words, code, line):
    run("topic", "create", "t", "--if-not-exists")

    found, out, err = run("config", *words.split())

    assert (found, out) == (code, "")
    assert line in err and err.count("\n") == 1
