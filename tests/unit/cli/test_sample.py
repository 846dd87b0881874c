"""``kbroker sample``: the files of config/, wherever kbroker is installed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import kbroker
from kbroker.cli import command
from kbroker.cli.verbs import sample

pytestmark = pytest.mark.unit

CONFIG = Path(__file__).resolve().parents[3] / "config"


def test_samples_are_the_files_of_config() -> None:
    assert set(sample.SAMPLES) == {path.name for path in CONFIG.iterdir()}


def test_without_a_name_they_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["sample"]) == 0

    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [*sample.SAMPLES]


def test_named_one_is_printed_byte_by_byte(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert command.main(["sample", "server.properties"]) == 0

    assert capfdbinary.readouterr().out == (CONFIG / "server.properties").read_bytes()


def test_all_are_copied_and_programs_can_be_started(tmp_path: Path) -> None:
    assert command.main(["sample", "--to", str(tmp_path / "new")]) == 0

    for name in sample.SAMPLES:
        assert (tmp_path / "new" / name).read_bytes() == (CONFIG / name).read_bytes()
    assert os.access(tmp_path / "new" / "container-run", os.X_OK)


def test_no_file_is_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = tmp_path / "server.properties"
    mine.write_text("mine")

    assert command.main(["sample", "--to", str(tmp_path)]) == 1

    assert mine.read_text() == "mine"
    assert list(tmp_path.iterdir()) == [mine]
    assert capsys.readouterr().err == f"kbroker sample: {mine} exists already\n"


def test_unknown_name_and_unwritable_directory_are_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")

    assert command.main(["sample", "server.propertie"]) == 2
    assert command.main(["sample", "kbroker.service", "--to", str(tmp_path / "file")]) == 1

    first, second = capsys.readouterr().err.splitlines()
    assert first.endswith("no sample 'server.propertie': did you mean 'server.properties'?")
    assert second.startswith(f"kbroker sample: cannot write to {tmp_path / 'file'}: ")


def test_installed_ones_come_before_those_of_a_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site-packages" / "kbroker"
    package.mkdir(parents=True)
    monkeypatch.setattr(kbroker, "__file__", str(package / "__init__.py"))
    assert sample.place() == package.parent / "config"

    (package / "samples").mkdir()

    assert sample.place() == package / "samples"
