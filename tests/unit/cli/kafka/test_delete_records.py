"""``kafka-delete-records``: what its file may be."""

from __future__ import annotations

import pytest

from kbroker.cli.kafka.delete_records import _offsets
from kbroker.cli.kafka.running import ToolFailed

pytestmark = pytest.mark.unit


def read(tmp_path, text: str):
    path = tmp_path / "offsets.json"
    path.write_text(text)
    return _offsets(str(path))


def test_each_partition_has_an_offset(tmp_path):
    rows = (
        '{"topic": "t", "partition": 0, "offset": 5}, {"topic": "t", "partition": 1, "offset": -1}'
    )

    assert read(tmp_path, f'{{"partitions": [{rows}]}}') == {("t", 0): 5, ("t", 1): -1}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "The input string is not a valid JSON"),
        ("{}", "Missing partitions field"),
        ('{"version": 2, "partitions": []}', "Not supported version field value 2"),
        ('{"partitions": [{"topic": "t"}]}', "expected topic, partition and offset"),
        ('{"partitions": 3}', "expected topic, partition and offset"),
        ("[]", "expected topic, partition and offset"),
        (
            '{"partitions": [{"topic": "t", "partition": 0, "offset": 5}, '
            '{"topic": "t", "partition": 0, "offset": 6}]}',
            "Offset json file contains duplicate topic partitions: t-0",
        ),
    ],
)
def test_wrong_file_is_refused(tmp_path, text, why):
    with pytest.raises(ToolFailed, match=why):
        read(tmp_path, text)


def test_missing_file_is_named(tmp_path):
    with pytest.raises(ToolFailed, match=r"nothing\.json: No such file or directory"):
        _offsets(str(tmp_path / "nothing.json"))
