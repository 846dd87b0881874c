"""``kafka-leader-election``: which partitions are meant, and what is said of each."""

from __future__ import annotations

import pytest

from kbroker.cli.kafka.leader_election import OPTIONS, _partitions, _print
from kbroker.cli.kafka.options import Given
from kbroker.cli.kafka.running import ToolFailed
from kbroker.client.errors import RejectedError
from kbroker.errors import ErrorCode

pytestmark = pytest.mark.unit


def test_partitions_are_one_all_or_those_of_a_file(tmp_path):
    path = tmp_path / "partitions.json"
    path.write_text('{"partitions": [{"topic": "t", "partition": 1}]}')

    assert _partitions(Given(OPTIONS, ["--topic", "t", "--partition", "2"])) == [("t", 2)]
    assert _partitions(Given(OPTIONS, ["--all-topic-partitions"])) is None
    assert _partitions(Given(OPTIONS, ["--path-to-json-file", str(path)])) == [("t", 1)]


@pytest.mark.parametrize("text", ["{", "{}", "3", '{"partitions": [{"topic": "t"}]}'])
def test_wrong_file_is_refused(tmp_path, text):
    path = tmp_path / "partitions.json"
    path.write_text(text)
    with pytest.raises(ToolFailed):
        _partitions(Given(OPTIONS, ["--path-to-json-file", str(path)]))


def test_what_was_elected_needless_and_impossible_is_said_apart(capsys):
    needless = RejectedError(ErrorCode.ELECTION_NOT_NEEDED, "x")
    failed = RejectedError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "x")

    with pytest.raises(ToolFailed, match=r"1 replica\(s\) could not be elected"):
        _print("PREFERRED", {("t", 0): None, ("t", 1): needless, ("t", 2): failed})

    assert capsys.readouterr().out.splitlines() == [
        "Successfully completed leader election (PREFERRED) for partitions t-0",
        "Valid replica already elected for partitions t-1",
        "Error completing leader election (PREFERRED) for partition: t-2: org.apache.kafka.common."
        "errors.UnknownTopicOrPartitionException: This server does not host this topic-partition.",
    ]
