"""``--zk-tls-config-file``: beside what it may be given, and what is in the file."""

from __future__ import annotations

import pytest

from kbroker.cli.kafka import table
from kbroker.cli.kafka.running import ToolFailed
from kbroker.cli.kafka.zookeeper import tls_of
from kbroker.cli.kafka.zookeeper_configs import WARNING
from kbroker.client.errors import UnreachableError
from kbroker.client.zookeeper import znodes

pytestmark = pytest.mark.unit

FILE = ("--zk-tls-config-file", "/nowhere")
DESCRIBE = ("--describe", "--entity-type", "topics")
BY_ZOOKEEPER = ("--zookeeper", "127.0.0.1:1")
BY_AUTHORIZER = ("--authorizer-properties", "zookeeper.connect=127.0.0.1:1")
BY_BROKER = ("--bootstrap-server", "127.0.0.1:1")
NO_FILE = "/nowhere: No such file or directory"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (FILE, "One of the required --bootstrap-server or --zookeeper arguments must be specified"),
        (
            (*FILE, *BY_ZOOKEEPER, *BY_BROKER),
            "Only one of --bootstrap-server or --zookeeper must be specified",
        ),
        (
            (*FILE, *FILE, *BY_ZOOKEEPER),
            "Found multiple arguments for option zk-tls-config-file, but you asked for only one",
        ),
        (FILE[:1], "Option zk-tls-config-file requires an argument"),
        (
            (*FILE, *BY_ZOOKEEPER),
            "Error while executing config command with args '--describe --entity-type topics "
            f"--zk-tls-config-file /nowhere --zookeeper 127.0.0.1:1'\n{NO_FILE}",
        ),
    ],
)
def test_configs_says_what_kafkas_does(capsys, words, said):
    """In the words of Kafka 2.7.2, and the reason for the last."""
    assert table.main([*DESCRIBE, *words], "kafka-configs") == 1
    out, errors = capsys.readouterr()
    assert out in ("", WARNING + "\n")
    assert errors == said + "\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (FILE, 'Missing required argument "[authorizer-properties]"'),
        (("--authorizer", "x"), 'Missing required argument "[authorizer-properties]"'),
        (
            (*FILE, *BY_AUTHORIZER, *BY_BROKER),
            "The --authorizer-properties option can only be used with --authorizer option",
        ),
        (
            (*FILE, *BY_AUTHORIZER, *BY_BROKER, "--authorizer", "x"),
            "Only one of --bootstrap-server or --authorizer must be specified",
        ),
        (FILE[:1], "Option zk-tls-config-file requires an argument"),
        ((), "One of --bootstrap-server or --bootstrap-controller must be specified"),
    ],
)
def test_acls_refuses_what_kafkas_does(capsys, words, said):
    assert table.main(["--list", *words], "kafka-acls") == 1
    out, errors = capsys.readouterr()
    assert (out, errors.splitlines()[0]) == ("", said)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (FILE, NO_FILE),
        (
            (*FILE, *FILE),
            "Found multiple arguments for option zk-tls-config-file, but you asked for only one",
        ),
    ],
)
def test_acls_names_a_file_it_cannot_read(capsys, words, said):
    assert table.main(["--list", *BY_AUTHORIZER, *words], "kafka-acls") == 1
    assert capsys.readouterr() == (f"Error while executing ACL command: {said}\n", "")


def test_tls_is_off_unless_the_file_enables_it():
    """As for Kafka, but what looks like TLS and would not be it is refused."""
    store = {"zookeeper.ssl.truststore.location": "/x.pem"}

    assert tls_of({}, "f") is None
    assert tls_of({"zookeeper.connect": "x:1", "ssl.truststore.location": "/x"}, "f") is None
    assert tls_of({"zookeeper.ssl.client.enable": "false", **store}, "f") is None
    assert tls_of({"zookeeper.ssl.client.enable": "True", **store}, "f") is not None
    with pytest.raises(ToolFailed, match=r"f: zookeeper\.ssl\.client\.enable: expected true"):
        tls_of(store, "f")


def test_settings_of_the_authorizer_come_before_others(monkeypatch, tmp_path, capsys):
    """As in Kafka, those of the file before those of the command line."""
    file = tmp_path / "tls.properties"
    file.write_text(
        "zookeeper.ssl.client.enable=true\nzookeeper.ssl.keystore.location=/a.pem\n"
        "zookeeper.ssl.truststore.location=/b.pem\n"
        "authorizer.zookeeper.ssl.truststore.location=/c.pem\n"
    )
    asked = []

    def opened(connect, tls=None):
        asked.append((connect, tls and tls._settings))
        raise UnreachableError({connect: "nobody there"})

    monkeypatch.setattr(znodes, "Znodes", opened)
    more = ("--authorizer-properties", "zookeeper.ssl.keystore.location=/d.pem")
    table.main(["--list", *BY_AUTHORIZER, *more, "--zk-tls-config-file", str(file)], "kafka-acls")
    url = ("--authorizer-properties", "authorizer.zookeeper.url=z:1/other")
    table.main(["--list", *BY_AUTHORIZER, *url], "kafka-acls")

    ((connect, settings), plain) = asked
    assert connect == "127.0.0.1:1"
    assert settings["ssl.keystore.location"] == "/a.pem"
    assert settings["ssl.truststore.location"] == "/c.pem"
    assert plain == ("z:1/other", None)
    assert "nobody there" in capsys.readouterr().out
