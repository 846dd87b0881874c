"""Topics with tiered storage: records only in remote storage are not lost silently."""

import pytest
from support.storage.kraft_dirs import ORDERS, all_files, kraft_dir, zookeeper_dir

from kbroker.adopt import metadata_records as records
from kbroker.adopt.at_start import look_at_topics
from kbroker.adopt.errors import Refusal
from kbroker.cli.adopt import EXIT_OK, EXIT_REFUSED, main

pytestmark = pytest.mark.unit

TIERED = records.ConfigRecord(
    resource_type=records.TOPIC_RESOURCE,
    resource_name="orders",
    name="remote.storage.enable",
    value="true",
)


def adopt(directory, *arguments):
    return main(["--log-dirs", str(directory), *arguments])


def refused(capsys, directory, *arguments):
    """Returns the message of the refusal; asserts that it left no trace."""
    before = all_files(directory)
    assert adopt(directory, *arguments) == EXIT_REFUSED
    assert all_files(directory) == before
    return capsys.readouterr().err


def first_segment_gone(directory, start):
    """The log begins with its file at offset 3; start: the line of its checkpoint."""
    log = directory / "orders-0" / f"{0:020}.log"
    data = log.read_bytes()
    log.with_name(f"{3:020}.log").write_bytes(data[3 * len(data) // 5 :])
    for suffix in ("log", "index", "timeindex"):
        log.with_suffix(f".{suffix}").unlink()
    lines = [] if start is None else [f"orders 0 {start}"]
    checkpoint = directory / "log-start-offset-checkpoint"
    checkpoint.write_text("\n".join(["0", str(len(lines)), *lines, ""]))


@pytest.mark.parametrize(("start", "gone"), [(1, "1 to 2"), (None, "0 to 2")])
@pytest.mark.parametrize("stop", ["in order", "killed"])
def test_topic_that_begins_in_remote_storage_is_refused(tmp_path, capsys, start, gone, stop):
    directory = kraft_dir(tmp_path, [*ORDERS, TIERED])
    first_segment_gone(directory, start)
    if stop == "killed":
        (directory / ".kafka_cleanshutdown").unlink()

    text = refused(capsys, directory)
    assert f"{directory}/orders-0: offsets {gone} of topic orders are in remote storage" in text
    assert "--without-remote-records" in text


def test_topic_that_begins_in_remote_storage_is_taken_when_told_so(tmp_path, capsys):
    directory = kraft_dir(tmp_path, [*ORDERS, TIERED])
    first_segment_gone(directory, 1)

    assert adopt(directory, "--without-remote-records") == EXIT_OK
    text = capsys.readouterr().out
    assert (
        "Topic orders: offsets 1 to 2 of partition 0 are in remote storage and are left behind"
        in text
    )
    assert "remote.storage.enable=true is not kept" in text


def test_topic_of_which_all_is_here_is_taken(tmp_path):
    """Kafka copies segments to remote storage long before it removes its own."""
    directory = kraft_dir(tmp_path, [*ORDERS, TIERED])
    (directory / "log-start-offset-checkpoint").write_text("0\n1\norders 0 0\n")
    (directory / "remote-log-index-cache").mkdir()

    assert adopt(directory) == EXIT_OK


def test_first_file_that_is_missing_is_refused(tmp_path, capsys):
    """With nothing in remote storage and a clean shutdown of Kafka, it was not copied."""
    directory = kraft_dir(tmp_path)
    first_segment_gone(directory, 1)

    for arguments in ((), ("--without-remote-records",)):
        text = refused(capsys, directory, *arguments)
        assert f"{directory}/orders-0: offsets 1 to 2 are missing" in text
        assert "remote" not in text
    # Retention may have been ahead of the checkpoint.
    (directory / ".kafka_cleanshutdown").unlink()
    assert adopt(directory) == EXIT_OK


def test_first_file_that_is_missing_may_be_in_remote_storage_without_settings(tmp_path, capsys):
    directory = zookeeper_dir(tmp_path)
    first_segment_gone(directory, 1)

    with pytest.raises(Refusal, match="orders-0: offsets 1 to 2 are missing"):
        look_at_topics([str(directory)])
    assert "--without-remote-records" in refused(capsys, directory)
    assert adopt(directory, "--without-remote-records") == EXIT_OK


def test_log_of_which_retention_removed_the_beginning_is_taken(tmp_path):
    for name, start in (("at", 3), ("above", 4), ("none", None)):
        directory = zookeeper_dir(tmp_path / name)
        first_segment_gone(directory, start)
        assert adopt(directory) == EXIT_OK
