"""How the three jobs report an unknown client config, before they connect to a broker."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from kbroker.spark.audit.cli import main as audit
from kbroker.spark.load import cli as load_cli
from kbroker.spark.load.cli import main as load
from kbroker.spark.mirror.cli import main as mirror

pytestmark = pytest.mark.unit

NOWHERE = "127.0.0.1:1"
SOON = "default.api.timeout.ms=300"
MISSPELT = "default.api.timeout=300"


@pytest.mark.parametrize(
    ("main", "arguments"),
    [
        (load, ["run", "--bootstrap", NOWHERE, "--dest", "DEST", "--client-setting"]),
        (audit, ["--bootstrap", NOWHERE, "--client-setting"]),
        (mirror, ["--from", NOWHERE, "--to", NOWHERE, "--from-setting"]),
        (mirror, ["--from", NOWHERE, "--to", NOWHERE, "--from-setting", SOON, "--to-setting"]),
    ],
)
def test_misspelt_setting_is_told_with_the_likely_one(
    main: Callable[[Sequence[str]], int],
    arguments: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = [str(tmp_path) if one == "DEST" else one for one in arguments]

    code = main([*given, MISSPELT, given[-1], SOON, "--topics", "t", "--master", "none"])

    said = capsys.readouterr().err
    assert code == 1
    assert f"unknown client setting {MISSPELT[:-4]}; did you mean default.api.timeout" in said
    assert f"no broker could be reached within 0.3 s: {NOWHERE}" in said


@pytest.mark.parametrize(
    ("main", "arguments", "option"),
    [
        (load, ["run", "--bootstrap", NOWHERE, "--dest", "DEST"], "--client-config"),
        (audit, ["--bootstrap", NOWHERE], "--client-config"),
        (mirror, ["--from", NOWHERE, "--to", NOWHERE], "--from-config"),
        (mirror, ["--from", NOWHERE, "--to", NOWHERE, "--from-setting", SOON], "--to-config"),
    ],
)
def test_settings_come_from_a_file_with_any_line_ends_and_later_ones_count(
    main: Callable[[Sequence[str]], int],
    arguments: list[str],
    option: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """For passwords that must not be visible to others."""
    file = tmp_path / "client.properties"
    file.write_bytes(b"# ours\r\nclint.id = hush\r\ndefault.api.timeout.ms: 99000\r\n")
    given = [str(tmp_path / "lake") if one == "DEST" else one for one in arguments]

    setting = option.replace("config", "setting")
    code = main([*given, option, str(file), setting, SOON, "--topics", "t", "--master", "none"])

    said = capsys.readouterr().err
    assert code == 1
    assert "unknown client setting clint.id; did you mean client.id?" in said
    assert f"no broker could be reached within 0.3 s: {NOWHERE}" in said
    assert "hush" not in said


def test_file_of_settings_that_is_not_there_or_says_what_an_option_does_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = ["run", "--bootstrap", NOWHERE, "--dest", str(tmp_path), "--topics", "t"]
    file = tmp_path / "client.properties"
    file.write_text("group.id=mine\n")

    for path, says in ((tmp_path / "other", "No such file"), (file, "write --group")):
        with pytest.raises(SystemExit):
            load([*run, "--client-config", str(path)])
        assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("sink", "dest", "where"),
    [("dir", "/data/lake", ": /data/lake"), ("jdbc", "postgresql://me:hush@db/x", "")],
)
def test_full_disk_is_told_with_the_folder_and_without_a_password(
    sink: str,
    dest: str,
    where: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fill(given: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(load_cli, "_run", fill)
    arguments = ["--bootstrap", NOWHERE, "--topics", "t", "--dest", dest, "--sink", sink]

    code = load(["run", *arguments])

    assert code == 1
    said = f"kbroker-load: [Errno 28] No space left on device{where}\n"
    assert capsys.readouterr().err == said
