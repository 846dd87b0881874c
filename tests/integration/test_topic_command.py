"""``kbroker topic`` and the calls below it, on a real broker."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

import pytest

from kbroker.cli import command
from kbroker.client.admin import configs as config_admin
from kbroker.client.admin import topics as topic_admin
from kbroker.client.connections.cluster import Cluster
from kbroker.client.errors import RejectedError
from kbroker.errors import ErrorCode
from kbroker.testing import Broker

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(num_partitions=2) as started:
        yield started


@pytest.fixture
def topic(broker, capsys, monkeypatch):
    """Runs ``kbroker topic ...`` -> (exit code, stdout, stderr)."""
    monkeypatch.setenv("KBROKER_BOOTSTRAP_SERVER", broker.bootstrap)

    def run(*words: str) -> tuple[int, str, str]:
        code = command.main(["topic", *words])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def cluster(broker) -> Iterator[Cluster]:
    with Cluster(broker.bootstrap) as opened:
        yield opened


def described(topic, name: str, *words: str):
    code, out, err = topic("describe", name, "-o", "json", *words)
    assert (code, err) == (0, "")
    return json.loads(out)[0]


def test_topic_has_the_partitions_and_settings_that_were_given(topic):
    settings = ["-p", "3", "-r", "1", "-c", "retention.ms=1000", "-c", "cleanup.policy=compact"]
    assert topic("create", "given", *settings) == (
        0,
        "created topic given: 3 partitions, replication factor 1\n",
        "",
    )

    found = described(topic, "given", "--offsets")

    assert found["configs"] == {"cleanup.policy": "compact", "retention.ms": "1000"}
    assert len(found["id"]) == 22
    assert [row["partition"] for row in found["partitions"]] == [0, 1, 2]
    assert {(row["start"], row["end"]) for row in found["partitions"]} == {(0, 0)}
    assert {tuple(row["isr"]) for row in found["partitions"]} == {
        (row["leader"],) for row in found["partitions"]
    }


def test_broker_decides_what_is_left_out(topic):
    code, out, _ = topic("create", "default", "-o", "json")

    assert code == 0
    assert json.loads(out) == [{"name": "default", "partitions": 2, "replication_factor": 1}]


def test_list_has_patterns_and_internal_topics_on_request(topic):
    topic("create", "list-a", "list-b", "other", "-p", "1")

    assert topic("list", "list-*")[1].splitlines() == [
        "TOPIC   PARTITIONS  REPLICATION",
        "list-a  1           1",
        "list-b  1           1",
    ]
    assert topic("list", "none-?") == (0, "no topics\n", "")
    names = [row["name"] for row in json.loads(topic("list", "-o", "json")[1])]
    assert "other" in names and not [name for name in names if name.startswith("__")]


def test_one_topic_that_exists_does_not_stop_the_others(topic):
    topic("create", "there")

    code, out, err = topic("create", "there", "new")

    assert code == 1
    assert out == "created topic new: 2 partitions, replication factor 1\n"
    assert "topic there: TOPIC_ALREADY_EXISTS" in err and err.count("\n") == 1
    assert topic("create", "there", "--if-not-exists")[0] == 0


def test_dry_run_creates_and_alters_nothing(topic):
    assert topic("create", "dry", "--dry-run")[1].startswith("could create topic dry")
    assert topic("describe", "dry")[0] == 1
    topic("create", "dry", "-p", "1")
    assert topic("alter", "dry", "-p", "2", "-c", "retention.ms=5", "--dry-run")[0] == 0

    found = described(topic, "dry")

    assert (len(found["partitions"]), found["configs"]) == (1, {})


def test_alter_adds_partitions_and_sets_and_unsets(topic):
    topic("create", "altered", "-p", "1", "-c", "retention.ms=1000", "-c", "segment.ms=2000")

    words = ["-p", "4", "-c", "retention.bytes=9", "--unset", "retention.ms"]
    assert topic("alter", "altered", *words) == (0, "altered topic altered\n", "")

    found = described(topic, "altered")
    assert found["configs"] == {"retention.bytes": "9", "segment.ms": "2000"}
    assert len(found["partitions"]) == 4
    assert topic("alter", "altered", "-p", "2")[0] == 1


def test_nearest_name_of_a_topic_is_named(topic):
    topic("create", "invoices")

    line = "topic invoces does not exist; did you mean invoices?\n"
    assert topic("describe", "invoces") == (1, "", f"kbroker topic describe: {line}")
    assert topic("alter", "invoces", "-p", "9") == (1, "", f"kbroker topic alter: {line}")
    assert topic("delete", "invoces", "--force") == (1, "", f"kbroker topic delete: {line}")


def test_deleted_topic_is_gone(topic):
    topic("create", "gone")

    assert topic("delete", "gone", "--force") == (0, "deleted topic gone\n", "")
    assert topic("delete", "gone", "--force")[0] == 1
    assert topic("delete", "gone", "--force", "--if-exists") == (0, "", "")


@pytest.mark.parametrize(("answer", "left"), [("n\n", True), ("y\n", False)])
def test_user_is_asked_before_a_topic_is_deleted(topic, monkeypatch, answer, left):
    name = "asked-" + answer.strip()
    topic("create", name)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys.stdin, "readline", lambda: answer, raising=False)

    code, _, err = topic("delete", name)

    assert f"topic {name} with all its records\nDelete? (y/n)" in err
    assert (code == 1) is left
    assert (topic("describe", name)[0] == 0) is left


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("create t -c retention.msx=1", "no setting 'retention.msx' of a topic: did you mean "
         "retention.ms?"),
        ("create t -c retention.ms", "'retention.ms': write NAME=VALUE"),
        ("create t -p 0", "argument -p/--partitions: '0' is not a number from 1 to 2147483647"),
        ("create t --partition 1", "unknown option --partition; did you mean --partitions?"),
        ("alter t", "nothing to alter: give --partitions, --config or --unset"),
        ("alter t -c retention.ms=1 --unset retention.ms", "retention.ms is both set and unset"),
        ("delete t", "add --force to delete without being asked"),
    ],
)  # fmt: skip
def test_wrong_usage_is_one_line_and_exit_code_2(topic, monkeypatch, words, line):
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False, raising=False)

    assert topic(*words.split()) == (2, "", f"kbroker topic {words.split()[0]}: {line}\n")


def test_value_that_the_broker_rejects_is_named(topic):
    code, out, err = topic("create", "wrong", "-c", "retention.ms=soon")

    assert (code, out) == (1, "")
    assert "retention.ms" in err and "soon" in err and err.count("\n") == 1


# -- the calls


def test_topic_is_created_on_named_replicas(broker, cluster):
    leader = cluster.nodes()[0]
    new = topic_admin.NewTopic("placed", replicas=[[leader], [leader]])

    topic_admin.create_topics(cluster, [new])

    (state,) = topic_admin.describe_topics(cluster, ["placed"])
    assert [row.replicas for row in state.partitions] == [[leader], [leader]]
    assert state.replication_factor == 1


def test_results_are_by_name(cluster):
    topic_admin.create_topics(cluster, [topic_admin.NewTopic("by-name", 1)])

    results = topic_admin.add_partitions(cluster, {"by-name": 3, "absent": 3})
    deleted = topic_admin.delete_topics(cluster, ["by-name", "absent"])

    for rows in (results, deleted):
        assert rows["by-name"] is None
        assert isinstance(rows["absent"], RejectedError)
        assert rows["absent"].code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_describing_a_topic_does_not_create_it(cluster):
    for _ in range(2):
        with pytest.raises(RejectedError) as caught:
            topic_admin.describe_topics(cluster, ["never"])
        assert caught.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert topic_admin.describe_topics(cluster, []) == []


def test_settings_have_sources_and_are_set_and_unset(cluster):
    topic_admin.create_topics(cluster, [topic_admin.NewTopic("set", 1)])

    def own() -> dict[str, str | None]:
        rows = config_admin.describe_configs(cluster, config_admin.TOPIC, ["set"])["set"]
        assert isinstance(rows, list)
        return {row.name: row.value for row in rows if row.own}

    config_admin.alter_configs(cluster, config_admin.TOPIC, "set", {"retention.ms": "7"})
    assert own() == {"retention.ms": "7"}
    config_admin.alter_configs(
        cluster, config_admin.TOPIC, "set", {"retention.ms": None, "segment.ms": "8"}
    )
    assert own() == {"segment.ms": "8"}
    with pytest.raises(RejectedError):
        config_admin.alter_configs(cluster, config_admin.TOPIC, "set", {"retention.ms": "x"})


def test_documentation_comes_on_request_and_keys_can_be_chosen(cluster):
    topic_admin.create_topics(cluster, [topic_admin.NewTopic("told", 1)])

    rows = config_admin.describe_configs(
        cluster, config_admin.TOPIC, ["told"], ["retention.ms"], documentation=True
    )["told"]

    assert isinstance(rows, list)
    ((name, value, source, own, read_only, sensitive, text, synonyms),) = rows
    assert (name, value, source) == ("retention.ms", "604800000", "DEFAULT_CONFIG")
    assert (own, read_only, sensitive) == (False, False, False)
    assert len(text) > 20 and synonyms == ()


def test_rejected_resource_is_an_error_beside_the_others(cluster):
    topic_admin.create_topics(cluster, [topic_admin.NewTopic("beside", 1)])

    found = config_admin.describe_configs(cluster, config_admin.TOPIC, ["beside", "nowhere"])

    assert isinstance(found["beside"], list)
    assert isinstance(found["nowhere"], RejectedError)
