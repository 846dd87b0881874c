"""``kbroker profile``, and how commands choose between profiles, variables and options."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from kbroker.cli import command

pytestmark = pytest.mark.unit

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    for name in ("BOOTSTRAP_SERVER", "COMMAND_CONFIG", "TIMEOUT", "OUTPUT", "PROFILE"):
        monkeypatch.delenv(f"KBROKER_{name}", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path / "kbroker"


@pytest.fixture
def run(home: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    def run_it(*words: str) -> tuple[int, str, str]:
        code = command.main(words)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run_it


def tried(run: Run, *words: str) -> str:
    """Which address ``topic list`` tries."""
    code, _, err = run("topic", "list", "--timeout", "0.1", *words)
    assert code == 1
    return err.partition("127.0.0.1:")[2].partition(":")[0]


def test_profile_is_a_file_that_only_its_owner_may_read(run: Run, home: Path) -> None:
    words = ("sasl.username=alice", "sasl.password= p\\w=1")

    assert run("profile", "create", "prod", "-b", "127.0.0.1:1", *words)[0] == 0

    file = home / "profiles" / "prod.properties"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    _, out, _ = run("profile", "show", "prod", "-o", "json")
    assert json.loads(out)["settings"] == {
        "sasl.username": "alice",
        "sasl.password": "(hidden)",
        "bootstrap.servers": "127.0.0.1:1",
    }
    from kbroker.cli.profiles import read

    assert read("prod")["sasl.password"] == " p\\w=1"


def test_first_profile_is_in_use_and_others_when_they_are_chosen(run: Run, home: Path) -> None:
    assert "in use now" in run("profile", "create", "a", "-b", "127.0.0.1:1")[1]
    assert "in use" not in run("profile", "create", "b", "-b", "127.0.0.1:2")[1]
    assert tried(run) == "1"
    assert tried(run, "--profile", "b") == "2"

    assert run("profile", "use", "b") == (0, "profile b is in use\n", "")
    assert tried(run) == "2"
    assert json.loads(run("profile", "list", "-o", "json")[1]) == [
        {"profile": "a", "current": False, "brokers": "127.0.0.1:1", "problem": None},
        {"profile": "b", "current": True, "brokers": "127.0.0.1:2", "problem": None},
    ]
    assert run("profile", "set", "b", "bootstrap.servers=127.0.0.1:3")[0] == 0
    assert tried(run) == "3"
    assert run("profile", "delete", "b")[0] == 0
    assert run("profile", "use", "--none")[0] == 0


def test_option_comes_before_variable_before_profile_in_use(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, name in enumerate("abc", 1):
        run("profile", "create", name, "-b", f"127.0.0.1:{number}")
    monkeypatch.setenv("KBROKER_PROFILE", "b")
    assert tried(run) == "2"
    monkeypatch.setenv("KBROKER_BOOTSTRAP_SERVER", "127.0.0.1:4")
    assert tried(run) == "4"
    assert tried(run, "--profile", "c") == "3"
    assert tried(run, "--profile", "c", "-b", "127.0.0.1:5") == "5"


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        ("topic list --profile prdo", 2, "no profile 'prdo': did you mean prod?"),
        ("topic list --profile ../x", 2, "profile '../x': a name has letters"),
        ("topic list --profile prod --command-config x", 2, "--command-config or --profile"),
        ("profile use nope", 2, "no profile 'nope': there are prod"),
        ("profile create prod -b h:1", 1, "profile prod exists: kbroker profile set changes it"),
        ("profile create x", 2, "which brokers? Give -b HOST:PORT"),
        ("profile create x -b h:1 sasl.mechansim=PLAIN", 2, "did you mean sasl.mechanism?"),
        ("profile create x -b h:1 sasl.mechanism", 2, "write SETTING=VALUE"),
        ("profile create x --from-file /absent", 2, "/absent: No such file or directory"),
        ("profile set prod", 2, "nothing to set"),
        ("profile set prod --unset acks", 1, "profile prod has no acks"),
        ("profile delete nope", 2, "no profile 'nope'"),
    ],
)
def test_wrong_use_is_one_line(run: Run, words: str, code: int, text: str) -> None:
    run("profile", "create", "prod", "-b", "127.0.0.1:1")

    found, out, err = run(*words.split())

    assert (found, out) == (code, "")
    assert text in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "mode", "text"),
    [
        (b"bootstrap.servers=\\u00zz\n", 0o600, "profile prod: "),
        (b"bootstrap.servers=127.0.0.1:1\n", 0o644, "others may read it: chmod 600 "),
    ],
)
def test_broken_file_is_one_line_and_listed(
    run: Run, home: Path, content: bytes, mode: int, text: str
) -> None:
    run("profile", "create", "prod", "-b", "127.0.0.1:1")
    file = home / "profiles" / "prod.properties"
    file.write_bytes(content)
    file.chmod(mode)

    for words in (["topic", "list"], ["profile", "show"], ["topic", "list", "--profile", "prod"]):
        code, _, err = run(*words)
        assert code == 2
        assert text in err
        assert str(file) in err
        assert err.count("\n") == 1
    (row,) = json.loads(run("profile", "list", "-o", "json")[1])
    assert text in row["problem"]


def test_profile_in_use_that_is_gone_is_said(run: Run, home: Path) -> None:
    run("profile", "create", "prod", "-b", "127.0.0.1:1")
    (home / "profiles" / "prod.properties").unlink()

    code, _, err = run("topic", "list")

    assert code == 2
    assert "no profile 'prod'" in err


def test_profiles_are_completed(run: Run) -> None:
    run("profile", "create", "prod", "-b", "127.0.0.1:1")
    run("profile", "create", "test", "-b", "127.0.0.1:1")

    assert run("__complete", "profile", "use", "")[1] == "prod\ntest\n"
    assert run("__complete", "topic", "list", "--profile", "t")[1] == "test\n"
