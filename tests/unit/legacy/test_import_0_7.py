"""Arguments of ``kbroker import-0.7``."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker.cli import command

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(("words", "said"), [
    (["plan", "/nowhere", "--state", "s"], "say of which broker it is, as in 0=/data/kafka-logs"),
    (["plan", "x=/nowhere", "--state", "s"], "say of which broker it is"),
    (["plan", "0=/nowhere", "--state", "s", "--topics", "("], "--topics (:"),
    (["run", "0=/nowhere"], "required: --state"),
    (["run", "0=/nowhere", "--state", "s", "--batch-bytes", "0"], "not a whole number above 0"),
    (["layout", "--state", "s"], "required: --zookeeper"),
])  # fmt: skip
def test_wrong_words_are_refused(capsys, words, said):
    assert command.main(["import-0.7", *words]) == 2
    assert said in capsys.readouterr().err


def test_directory_that_is_missing_or_given_twice_is_an_error(capsys, tmp_path: Path):
    state = ["--state", str(tmp_path / "state")]
    assert command.main(["import-0.7", "plan", "0=/nowhere", *state]) == 1
    assert "/nowhere: No such file or directory" in capsys.readouterr().err
    (tmp_path / "a-0").mkdir()
    twice = [f"0={tmp_path}", f"0={tmp_path}"]
    assert command.main(["import-0.7", "plan", *twice, *state]) == 2
    assert "a/0-0 is in two directories" in capsys.readouterr().err


def test_directory_without_logs_of_07_is_named(capsys, tmp_path: Path):
    """A log of Kafka 0.8, or a wrong directory, was imported as an empty partition, silently."""
    state = ["--state", str(tmp_path / "state")]
    nothing = tmp_path / "nothing"
    nothing.mkdir()
    assert command.main(["import-0.7", "plan", f"0={nothing}", *state]) == 0
    assert f"{nothing}: there is no directory TOPIC-NUMBER" in capsys.readouterr().err
    log = tmp_path / "logs" / "a-0"
    log.mkdir(parents=True)
    (log / f"{0:020}.log").write_bytes(b"x")
    assert command.main(["import-0.7", "plan", f"0={log.parent}", *state]) == 0
    said = capsys.readouterr().err
    assert said.startswith(f"{log}: there is no file NUMBER.kafka of Kafka 0.7 (it has 000")


def test_damaged_layout_is_named(capsys, tmp_path: Path):
    (tmp_path / "layout.json").write_text("[")

    assert command.main(["import-0.7", "plan", f"0={tmp_path}", "--state", str(tmp_path)]) == 1

    assert "layout.json: not the layout of a cluster" in capsys.readouterr().err
