"""Copies without a file, or with a truncated one, are rejected by name if there is any sign of
it.
"""

import struct

import pytest
from support.storage.kraft_dirs import all_files, drop_records, zookeeper_dir

from kbroker.cli.adopt import EXIT_OK, EXIT_REFUSED, main

pytestmark = pytest.mark.unit


def adopt(directory):
    return main(["--log-dirs", str(directory)])


def refused(capsys, directory):
    """Returns the message of the refusal; asserts that it left no trace."""
    before = all_files(directory)
    assert adopt(directory) == EXIT_REFUSED
    assert all_files(directory) == before
    return capsys.readouterr().err


def compacted_dir(directory):
    """Offsets 0, 3 and 4, the last two in their own segment."""
    zookeeper_dir(directory)
    drop_records(directory, 1, 3)
    (directory / "cleaner-offset-checkpoint").write_text("0\n1\norders 0 3\n")
    split(directory, 1, 3)
    return directory


def split(directory, at, offset):
    """Put the batches from number ``at`` on into a segment with base offset ``offset``."""
    first = segment(directory)
    data = first.read_bytes()
    position = at * 78
    first.write_bytes(data[:position])
    segment(directory, offset).write_bytes(data[position:])
    for suffix in ("index", "timeindex"):
        (directory / "orders-0" / f"{offset:020}.{suffix}").touch()


def segment(directory, offset=0):
    return directory / "orders-0" / f"{offset:020}.log"


def test_compacted_log_with_gaps_between_segments_is_taken(tmp_path):
    assert adopt(compacted_dir(tmp_path)) == EXIT_OK


@pytest.mark.parametrize("damage", ["cut", "hole"])
@pytest.mark.parametrize("stop", ["in order", "killed"])
def test_sealed_segment_of_a_compacted_log_cut_short_is_refused(tmp_path, capsys, damage, stop):
    """Gaps of compaction are no excuse: a batch is truncated, or the file has a hole."""
    directory = compacted_dir(tmp_path)
    data = segment(directory).read_bytes()
    segment(directory).write_bytes(data[:-1] if damage == "cut" else bytes(len(data)))
    if stop == "killed":
        (directory / ".kafka_cleanshutdown").unlink()

    text = refused(capsys, directory)
    assert f"{segment(directory)}: " in text
    assert "at position 0 although segments follow it; copy the directory again" in text


def test_sealed_segment_that_was_never_synced_is_left_to_the_recovery(tmp_path):
    directory = compacted_dir(tmp_path)
    (directory / "recovery-point-offset-checkpoint").write_text("0\n1\norders 0 0\n")
    (directory / ".kafka_cleanshutdown").unlink()
    segment(directory).write_bytes(segment(directory).read_bytes()[:-1])

    assert adopt(directory) == EXIT_OK


@pytest.mark.parametrize("batches", [0, 1])
def test_segment_that_ends_before_its_time_index_is_refused(tmp_path, capsys, batches):
    """Truncated between two batches, or emptied: only the time index reveals it."""
    directory = zookeeper_dir(tmp_path)
    (directory / "cleaner-offset-checkpoint").write_text("0\n1\norders 0 3\n")
    split(directory, 3, 3)
    index = segment(directory).with_suffix(".timeindex")
    index.write_bytes(struct.pack(">qi", 1002, 2))
    segment(directory).write_bytes(segment(directory).read_bytes()[: batches * 78])

    text = refused(capsys, directory)
    assert f"{segment(directory)} ends at offset {batches}, but {index} has an entry for 2;" in text
    (directory / ".kafka_cleanshutdown").unlink()
    assert adopt(directory) == EXIT_OK


@pytest.mark.parametrize("suffix", ["index", "timeindex", "txnindex"])
def test_index_without_its_log_is_refused(tmp_path, capsys, suffix):
    directory = compacted_dir(tmp_path)
    segment(directory).unlink()
    for index in ("index", "timeindex"):
        segment(directory).with_suffix(f".{index}").unlink()
    left = segment(directory).with_suffix(f".{suffix}")
    left.touch()

    text = refused(capsys, directory)
    assert f"{left}: its {segment(directory).name} is missing; copy the directory again" in text
    # The broker removes the remains of a crash.
    (directory / ".kafka_cleanshutdown").unlink()
    assert adopt(directory) == EXIT_OK
