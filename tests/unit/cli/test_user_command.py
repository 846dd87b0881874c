"""``kbroker user``: what reaches the broker, and where a password comes from."""

from __future__ import annotations

import hashlib
import io
import json
import sys
from collections.abc import Iterator

import pytest
from support.security.security_broker import SecurityBroker

from kbroker.cli import command

pytestmark = pytest.mark.unit

SHA_256, SHA_512 = 1, 2
PASSWORD = "pencil-of-alice"


@pytest.fixture
def broker() -> Iterator[SecurityBroker]:
    with SecurityBroker() as started:
        yield started


@pytest.fixture(autouse=True)
def password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KBROKER_USER_PASSWORD", PASSWORD)


def user(broker: SecurityBroker, *words: str) -> int:
    return command.main(["user", *words, "--bootstrap-server", broker.bootstrap])


def has_password(broker: SecurityBroker, name: str, password: str) -> bool:
    """Whether each credential of the user is derived from the password, by RFC 5802."""
    digests = {SHA_256: "sha256", SHA_512: "sha512"}
    found = {key: row for key, row in broker.users.items() if key[0] == name}
    assert found
    return all(
        hashlib.pbkdf2_hmac(digests[mechanism], password.encode(), salt, iterations) == salted
        for (_, mechanism), (iterations, salt, salted) in found.items()
    )


def test_added_user_has_credentials_of_both_mechanisms(broker):
    assert user(broker, "add", "alice") == 0

    assert {key: row[0] for key, row in broker.users.items()} == {
        ("alice", SHA_256): 8192,
        ("alice", SHA_512): 8192,
    }
    assert has_password(broker, "alice", PASSWORD)
    salts = {row[1] for row in broker.users.values()}
    assert len(salts) == 2


def test_one_mechanism_and_its_iterations_are_taken(broker):
    words = ["--mechanism", "SCRAM-SHA-512", "--iterations", "4096"]

    assert user(broker, "add", "alice", *words) == 0

    assert {key: row[0] for key, row in broker.users.items()} == {("alice", SHA_512): 4096}


def test_password_is_in_no_output_and_no_request(broker, capsys):
    user(broker, "add", "alice")

    captured = capsys.readouterr()
    assert PASSWORD not in captured.out + captured.err
    assert not any(PASSWORD in repr(request) for request in broker.requests)


def test_password_of_a_file_is_its_first_line(broker, tmp_path):
    file = tmp_path / "password"
    file.write_text("from the file \nsecond\n")

    assert user(broker, "add", "alice", "--password-file", str(file)) == 0

    assert has_password(broker, "alice", "from the file ")


def test_password_comes_from_standard_input(broker, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("päss\r\n".encode())))

    assert user(broker, "add", "alice", "--password-file", "-") == 0

    assert has_password(broker, "alice", "päss")


@pytest.mark.parametrize("content", [b"", b"\n", b"x" * 4097, b"\xff\xfe\n"])
def test_password_that_is_none_is_wrong_usage(broker, tmp_path, content, capsys):
    file = tmp_path / "password"
    file.write_bytes(content)

    assert user(broker, "add", "alice", "--password-file", str(file)) == 2
    assert capsys.readouterr().err.startswith(f"kbroker user add: --password-file {file}: ")
    assert broker.users == {}


def test_without_a_password_and_a_terminal_it_says_how(broker, monkeypatch, capsys):
    monkeypatch.delenv("KBROKER_USER_PASSWORD")
    monkeypatch.setattr(sys, "stdin", io.StringIO("not asked for\n"))

    assert user(broker, "add", "alice") == 2
    assert "--password-file" in capsys.readouterr().err


def test_asked_password_must_be_given_twice(broker, monkeypatch, capsys):
    import getpass

    monkeypatch.delenv("KBROKER_USER_PASSWORD")
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    answers = iter(["one", "two", "same", "same"])
    monkeypatch.setattr(getpass, "getpass", lambda prompt: next(answers))

    assert user(broker, "add", "alice") == 2
    assert "differ" in capsys.readouterr().err
    assert user(broker, "add", "alice") == 0
    assert has_password(broker, "alice", "same")


def test_password_is_no_argument(broker, capsys):
    assert user(broker, "add", "alice", "--password", "x") == 2
    assert "did you mean --password-file?" in capsys.readouterr().err


def test_users_are_listed(broker, capsys):
    broker.users = {("bob", SHA_512): (4096, b"", b""), ("alice", SHA_256): (8192, b"", b"")}

    assert user(broker, "list", "-o", "json") == 0

    assert json.loads(capsys.readouterr().out) == [
        {"user": "alice", "mechanism": "SCRAM-SHA-256", "iterations": 8192},
        {"user": "bob", "mechanism": "SCRAM-SHA-512", "iterations": 4096},
    ]
    assert user(broker, "list", "bob") == 0
    assert capsys.readouterr().out.splitlines() == [
        "USER  MECHANISM      ITERATIONS",
        "bob   SCRAM-SHA-512  4096",
    ]


def test_nobody_is_a_sentence(broker, capsys):
    assert user(broker, "list") == 0
    assert capsys.readouterr().out == "no user has SCRAM credentials\n"


def test_deleted_user_has_no_credential_left(broker):
    user(broker, "add", "alice")
    user(broker, "add", "bob")

    assert user(broker, "delete", "alice") == 0

    assert {name for name, _ in broker.users} == {"bob"}


def test_only_the_named_mechanism_is_deleted(broker):
    user(broker, "add", "alice")

    assert user(broker, "delete", "alice", "--mechanism", "SCRAM-SHA-256") == 0

    assert list(broker.users) == [("alice", SHA_512)]


def test_user_who_does_not_exist_fails_and_no_other_is_deleted(broker, capsys):
    user(broker, "add", "alice")

    assert user(broker, "delete", "alice", "mallory") == 1
    assert user(broker, "list", "mallory") == 1

    assert "user mallory: RESOURCE_NOT_FOUND" in capsys.readouterr().err
    assert len(broker.users) == 2


def test_controller_that_has_moved_is_looked_for():
    with SecurityBroker(moved=2) as broker:
        assert user(broker, "add", "alice") == 0
        assert has_password(broker, "alice", PASSWORD)
