"""``kbroker certs create``: files, refusals, renewal."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from kbroker.cli import command
from kbroker.security import certificates

pytestmark = pytest.mark.unit


def create(place: Path, *words: str) -> int:
    return command.main(["certs", "create", "--dir", str(place), *words])


def authority_of(place: Path) -> certificates.Authority:
    return certificates.load_authority(
        (place / "ca.crt").read_bytes(), (place / "ca.key").read_bytes()
    )


def test_new_directory_gets_an_authority_a_broker_and_clients(tmp_path, capsys):
    place = tmp_path / "certs"

    assert create(place, "--host", "b1.example.org", "--host", "10.0.0.1", "--client", "alice") == 0

    assert {file.name for file in place.iterdir()} == {
        "ca.crt",
        "ca.key",
        "broker.pem",
        "client-alice.pem",
    }
    broker = certificates.names_in((place / "broker.pem").read_bytes())
    assert broker == ("broker", ["b1.example.org", "10.0.0.1"], True, "ec")
    alice = (place / "client-alice.pem").read_bytes()
    assert certificates.names_in(alice) == ("alice", [], False, "ec")
    assert authority_of(place).signed(alice)
    out = capsys.readouterr().out
    assert f"ssl.keystore.location={place}/broker.pem" in out
    assert f"ssl.truststore.location={place}/ca.crt" in out


def test_keys_are_readable_by_their_owner_only(tmp_path):
    place = tmp_path / "certs"

    create(place, "--client", "alice")

    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in place.iterdir()}
    public = modes.pop("ca.crt")
    assert public == 0o644
    assert set(modes.values()) == {0o600}
    assert stat.S_IMODE(place.stat().st_mode) == 0o700


def test_files_that_are_there_are_not_overwritten(tmp_path, capsys):
    create(tmp_path, "--client", "alice")
    before = {file: file.read_bytes() for file in tmp_path.iterdir()}
    capsys.readouterr()

    for words in (["--client", "alice"], [], ["--host", "x"]):
        assert create(tmp_path, *words) == 1
        assert "add --renew to replace it" in capsys.readouterr().err

    assert {file: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_another_client_is_of_the_same_authority(tmp_path):
    create(tmp_path, "--client", "alice")
    before = {file: file.read_bytes() for file in tmp_path.iterdir()}

    assert create(tmp_path, "--client", "bob") == 0

    assert authority_of(tmp_path).signed((tmp_path / "client-bob.pem").read_bytes())
    assert {file: file.read_bytes() for file in before} == before


def test_renewed_certificates_keep_names_hosts_and_authority(tmp_path):
    create(tmp_path, "--host", "b1.example.org", "--client", "alice", "--key-type", "rsa")
    files = [tmp_path / "broker.pem", tmp_path / "client-alice.pem"]
    before = [file.read_bytes() for file in files]
    authority = (tmp_path / "ca.crt").read_bytes()

    assert create(tmp_path, "--renew") == 0

    after = [file.read_bytes() for file in files]
    assert [certificates.names_in(pem) for pem in after] == [
        certificates.names_in(pem) for pem in before
    ]
    assert all(old != new for old, new in zip(before, after, strict=True))
    assert (tmp_path / "ca.crt").read_bytes() == authority
    assert all(authority_of(tmp_path).signed(pem) for pem in after)


def test_one_of_them_is_renewed_when_it_is_named(tmp_path):
    create(tmp_path, "--client", "alice", "--client", "bob")
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}

    assert create(tmp_path, "--renew", "--client", "bob") == 0

    changed = {name for name in before if (tmp_path / name).read_bytes() != before[name]}
    assert changed == {"client-bob.pem"}


@pytest.mark.parametrize("missing", ["ca.key", "ca.crt"])
def test_half_an_authority_is_not_made_up_for(tmp_path, capsys, missing):
    create(tmp_path)
    (tmp_path / missing).unlink()

    assert create(tmp_path, "--client", "alice") == 1
    assert f"{missing} is missing" in capsys.readouterr().err
    assert not (tmp_path / missing).exists()


def test_renewal_of_nothing_is_refused(tmp_path, capsys):
    assert create(tmp_path, "--renew") == 1
    assert create(tmp_path, "--renew", "--client", "alice") == 1
    assert "has no authority" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["../alice", "", ".hidden", "a/b", "a" * 64, "al\nice"])
def test_name_of_a_client_that_is_no_file_name_is_wrong_usage(tmp_path, name):
    assert create(tmp_path, f"--client={name}") == 2
    assert list(tmp_path.iterdir()) == []


def test_directory_that_cannot_be_created_is_named(tmp_path, capsys):
    (tmp_path / "file").write_text("")

    assert create(tmp_path / "file" / "certs") == 1
    assert "file/certs: Not a directory" in capsys.readouterr().err


def test_broken_authority_is_named(tmp_path, capsys):
    create(tmp_path)
    (tmp_path / "ca.key").write_text("nonsense")

    assert create(tmp_path, "--client", "alice") == 1
    assert "not a PEM certificate" in capsys.readouterr().err
