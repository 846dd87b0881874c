"""``kafka-reassign-partitions``: its files, what is throttled, and what is said of each state."""

from __future__ import annotations

import json

import pytest

from kbroker.cli.kafka import table
from kbroker.cli.kafka.reassign_partitions import _dir_line, _state_line, _state_line_of_zookeeper
from kbroker.cli.kafka.reassignment_files import as_json, read_topics, read_wanted
from kbroker.cli.kafka.running import ToolFailed
from kbroker.client.admin.partitions import Reassignment
from kbroker.client.admin.reassignments import PartitionReplica
from kbroker.client.admin.throttles import moves_of, throttled

pytestmark = pytest.mark.unit


def written(tmp_path, document) -> str:
    path = tmp_path / "moves.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return str(path)


def rows(*partitions) -> dict:
    """(topic, partition, replicas, log directories or None) of each."""
    named = []
    for topic, number, nodes, dirs in partitions:
        row = {"topic": topic, "partition": number, "replicas": nodes}
        named.append(row if dirs is None else {**row, "log_dirs": dirs})
    return {"version": 1, "partitions": named}


def test_file_has_replicas_and_directories(tmp_path):
    given = rows(("t", 0, [1, 2], ["any", "/b"]), ("u", 3, [2], None))

    wanted = read_wanted(written(tmp_path, given))

    assert wanted.replicas() == {("t", 0): [1, 2], ("u", 3): [2]}
    assert wanted.dirs == {PartitionReplica("t", 0, 2): "/b"}
    assert json.loads(as_json(wanted.replicas(), wanted.dirs)) == rows(
        ("t", 0, [1, 2], ["any", "/b"]), ("u", 3, [2], ["any"])
    )
    assert json.loads(as_json(wanted.replicas(), None)) == rows(
        ("t", 0, [1, 2], None), ("u", 3, [2], None)
    )


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ("{", "not a valid JSON"),
        ("3", "JSON object"),
        ({"version": 2}, "Not supported version field value 2"),
        (rows(), "list cannot be empty"),
        (rows(("t", 0, [], None)), "replica list cannot be empty"),
        (rows(("t", 0, [1], None), ("t", 0, [2], None)), "duplicate topic partitions: t-0"),
        (rows(("t", 0, [1, 1], None)), "t-0 contains multiple entries for 1"),
        (rows(("t", 0, [1, 2], ["/a"])), "Size of replicas list [1, 2] is different"),
        ({"partitions": [{"topic": "t", "partition": 0}]}, "expected topic, partition"),
    ],
)
def test_wrong_file_of_moves_is_refused(tmp_path, document, said):
    with pytest.raises(ToolFailed) as failed:
        read_wanted(written(tmp_path, document)).replicas()

    assert said in str(failed.value)


def test_topics_to_move_are_those_of_the_file(tmp_path):
    topics = [{"topic": "foo1"}, {"topic": "foo2"}]

    assert read_topics(written(tmp_path, {"topics": topics, "version": 1})) == ["foo1", "foo2"]
    with pytest.raises(ToolFailed, match=r"duplicate entries: \[foo1\]"):
        read_topics(written(tmp_path, {"topics": [*topics, topics[0]]}))


def test_throttled_are_those_that_are_read_and_those_that_are_added():
    moving = {("t", 1): Reassignment([1, 2, 3], adding=[3], removing=[1])}
    proposed = {("t", 0): [1, 4], ("t", 1): [2, 4]}

    moves = moves_of(moving, proposed, {("t", 0): [1, 2], ("t", 1): [1, 2, 3]})

    # What moves already is read from where it was before.
    assert throttled(moves["t"]) == ("0:1,0:2,1:1,1:2", "0:4,1:4")


def test_states_are_in_the_words_of_either_release():
    key = ("t", 0)

    assert _state_line(key, [1, 2], None) == ("Reassignment of partition t-0 is still in progress.")
    assert _state_line(key, [1, 2], [1, 2]) == "Reassignment of partition t-0 is completed."
    assert _state_line(key, [1, 2], [3]) == (
        "There is no active reassignment of partition t-0, but replica set is 3 rather than 1,2."
    )
    assert _state_line_of_zookeeper(key, [1], None) == (
        "Reassignment of partition [t,0] is in progress"
    )
    assert _state_line_of_zookeeper(key, [1], [1]) == (
        "Reassignment of partition [t,0] completed successfully"
    )
    assert _state_line_of_zookeeper(key, [1], [2]).splitlines() == [
        "ERROR: Assigned replicas (2) don't match the list of replicas for reassignment (1) for "
        "partition [t,0]",
        "Reassignment of partition [t,0] failed",
    ]


@pytest.mark.parametrize(
    ("current", "future", "said"),
    [
        (None, None, "is not found in any live log dir on broker 1"),
        ("/b", None, "Reassignment of replica t-0-1 completed successfully."),
        ("/a", None, "is not being moved from log dir /a to /b."),
        ("/a", "/b", "Reassignment of replica t-0-1 is still in progress."),
        ("/a", "/c", "is being moved to log dir /c instead of /b."),
    ],
)
def test_a_replica_that_changes_directories_has_a_state(current, future, said):
    assert said in _dir_line(PartitionReplica("t", 0, 1), "/b", current, future)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--list", "--verify"], "Command must include exactly one action"),
        (["--list"], "Please specify either --bootstrap-server or --bootstrap-controller"),
        (["--verify", "--bootstrap-server", "x:1"], 'argument "[reassignment-json-file]"'),
        (
            ["--list", "--bootstrap-server", "x:1", "--throttle", "5"],
            'Option "[throttle]" can\'t be used with action "[list]"',
        ),
        (["--list", "--bootstrap-controller", "x:1"], "use --bootstrap-server"),
    ],
)
def test_wrong_use_of_reassignments_is_refused(capsys, words, said):
    assert table.main(words, "kafka-reassign-partitions") == 1
    assert said in capsys.readouterr().err
