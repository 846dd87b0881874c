"""Where the verbs of ``kbroker`` find the brokers: options, environment, files."""

from __future__ import annotations

import pytest

from kbroker.cli import command
from kbroker.protocol.primitives import EncodeError

pytestmark = pytest.mark.unit

NOBODY = "127.0.0.1:1"


@pytest.fixture(autouse=True)
def _bare(monkeypatch, tmp_path):
    for name in ("BOOTSTRAP_SERVER", "COMMAND_CONFIG", "TIMEOUT", "OUTPUT"):
        monkeypatch.delenv(f"KBROKER_{name}", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = command.main(["topic", "list", *words])
    return code, capsys.readouterr().err


def own_file(tmp_path, text: str):
    (tmp_path / "kbroker").mkdir()
    file = tmp_path / "kbroker" / "client.properties"
    file.write_text(text)
    return file


def test_address_comes_from_option_environment_file_in_that_order(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("KBROKER_TIMEOUT", "0.1")
    own_file(tmp_path, "bootstrap.servers=127.0.0.1:3\n")
    assert "127.0.0.1:3: cannot connect" in run(capsys)[1]

    monkeypatch.setenv("KBROKER_BOOTSTRAP_SERVER", "127.0.0.1:2")
    assert "127.0.0.1:2: cannot connect" in run(capsys)[1]

    code, err = run(capsys, "-b", NOBODY)
    assert (code, err.count("\n")) == (1, 1)
    assert f"within 0.1 s: {NOBODY}: cannot connect" in err


def test_file_that_is_named_comes_before_the_users_own(capsys, monkeypatch, tmp_path):
    own_file(tmp_path, "bootstrap.servers=127.0.0.1:3\n")
    named = tmp_path / "named.properties"
    named.write_text("bootstrap.servers=127.0.0.1:4\n")
    monkeypatch.setenv("KBROKER_COMMAND_CONFIG", str(named))

    assert "127.0.0.1:4: cannot connect" in run(capsys, "--timeout", "0.1")[1]


@pytest.mark.parametrize(
    ("name", "value", "line"),
    [
        ("TIMEOUT", "soon", "environment variable KBROKER_TIMEOUT: 'soon' is not a number of "
         "seconds from 0.001 to 999999"),
        ("OUTPUT", "xml", "environment variable KBROKER_OUTPUT: 'xml' is none of table, json, "
         "yaml"),
        ("BOOTSTRAP_SERVER", "nowhere", "bootstrap.servers: 'nowhere' is not host:port"),
        ("COMMAND_CONFIG", "/absent", "--command-config /absent: No such file or directory"),
    ],
)  # fmt: skip
def test_wrong_variable_is_wrong_usage(capsys, monkeypatch, name, value, line):
    monkeypatch.setenv(f"KBROKER_{name}", value)

    assert run(capsys) == (2, f"kbroker topic list: {line}\n")


def test_misspelled_setting_names_the_nearest(capsys, tmp_path):
    file = own_file(tmp_path, "# client\nbootstrap.server=127.0.0.1:3\n")

    assert run(capsys) == (
        2,
        f"kbroker topic list: {file}: no setting 'bootstrap.server'; did you mean "
        "bootstrap.servers?\n",
    )


def test_request_that_old_brokers_cannot_get_is_one_line(capsys, monkeypatch):
    """Never a traceback, whatever is at the other end."""

    def list_topics(cluster: object) -> None:
        raise EncodeError("X is set, but version 0 has no such field")

    monkeypatch.setattr("kbroker.client.admin.topics.list_topics", list_topics)

    assert run(capsys, "-b", NOBODY) == (
        1,
        "kbroker topic list: the brokers are too old for this: X is set, but version 0 has no "
        "such field\n",
    )


def test_settings_of_other_clients_in_the_file_have_no_effect(capsys, tmp_path):
    own_file(tmp_path, "acks=all\ngroup.id=g\nlinger.ms=5\nmax.poll.records=1\n")

    assert run(capsys, "-b", NOBODY, "--timeout", "0.1")[0] == 1
