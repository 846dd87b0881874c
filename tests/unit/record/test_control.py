"""Transaction markers: their bytes, and reading them back."""

import struct

import pytest

from kbroker.record.batch import RecordBatch
from kbroker.record.builder import BatchBuilder
from kbroker.record.control import MARKER_BYTES, EndTransactionMarker, marker_batch, parse_marker

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("commit", [True, False])
def test_marker_batch_equals_what_the_builder_makes_of_its_record(commit):
    builder = BatchBuilder(producer_id=7, producer_epoch=3, transactional=True, control=True)
    builder.append(struct.pack(">hi", 0, 5), struct.pack(">hh", 0, int(commit)), 1_700_000_000_000)

    made = marker_batch(7, 3, commit, 5, 1_700_000_000_000)

    assert bytes(made) == builder.build()
    assert len(made) == MARKER_BYTES == 78


@pytest.mark.parametrize("commit", [True, False])
def test_parse_marker_reads_what_was_made(commit):
    batch = RecordBatch(marker_batch(1 << 60, 32767, commit, 2**31 - 1, -1))
    batch.check()

    (record,) = list(batch.records())

    assert parse_marker(record.key, record.value) == EndTransactionMarker(commit, 2**31 - 1)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, b"\0" * 6),
        (b"\0" * 4, None),
        (b"\0\0\0", b"\0" * 6),
        (b"\0\0\0\2", b"\0" * 6),
        (b"\0" * 4, b"\0" * 5),
    ],
)
def test_parse_marker_of_anything_else_is_none(key, value):
    assert parse_marker(key, value) is None


def test_parse_marker_of_a_later_version_ignores_what_it_adds():
    key, value = struct.pack(">hhi", 1, 1, 9), struct.pack(">hih", 1, 4, 2)

    assert parse_marker(key, value) == EndTransactionMarker(True, 4)
