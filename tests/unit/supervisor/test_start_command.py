"""kbroker-supervisor's command line."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from kbroker import __version__
from kbroker.cli.start import main, parse_arguments

pytestmark = pytest.mark.unit


def test_config_may_be_an_option_or_positional() -> None:
    assert parse_arguments(["-c", "a"]).config == "a"
    assert parse_arguments(["--config", "a"]).config == "a"
    assert parse_arguments(["a"]).config == "a"
    assert parse_arguments([]).config is None


def test_config_named_twice_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        parse_arguments(["-c", "a", "b"])

    assert raised.value.code == 2
    assert "twice" in capsys.readouterr().err


def test_version_and_help_respond(capsys: pytest.CaptureFixture[str]) -> None:
    for argument in ("--version", "--help"):
        with pytest.raises(SystemExit) as raised:
            parse_arguments([argument])
        assert raised.value.code == 0

    assert f"kbroker {__version__}" in capsys.readouterr().out


def test_bad_value_exits_2_with_key_value_and_allowed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--override", "num.io.threads=none"]) == 2

    error = capsys.readouterr().err
    assert "num.io.threads" in error
    assert "none" in error
    assert "a whole number" in error


def test_collector_is_on_again_after_a_start_that_failed(tmp_path: Path) -> None:
    """The process of a caller from Python continues."""
    gc.enable()

    assert main([str(tmp_path / "missing")]) == 2
    assert gc.isenabled()


def test_missing_file_exits_2_and_names_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path / "absent.properties")]) == 2

    assert "absent.properties: No such file" in capsys.readouterr().err


@pytest.mark.parametrize("config", [[], ["-c", "innocent.properties"]])
def test_override_without_equals_exits_2(
    capsys: pytest.CaptureFixture[str], config: list[str]
) -> None:
    assert main([*config, "--override", "nonsense"]) == 2

    error = capsys.readouterr().err
    assert "key=value" in error
    assert "--override: 'nonsense'" in error
    assert "innocent" not in error


@pytest.mark.parametrize("area", ["all", "storage", "ipc.rpc", "supervisor,ipc.rpc", ""])
def test_debug_takes_packages_and_modules(area: str) -> None:
    assert ",".join(parse_arguments(["--debug", area]).areas) == area


@pytest.mark.parametrize("area", ["storrage", "ipc.rcp", "ipc.rpc.more", "nothing.at.all", "a b"])
def test_debug_of_what_is_not_there_is_an_error(
    area: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The broker started, and there was nothing more in its log."""
    with pytest.raises(SystemExit) as raised:
        parse_arguments(["--debug", area])

    assert raised.value.code == 2
    assert f"no package or module {area!r}" in capsys.readouterr().err
