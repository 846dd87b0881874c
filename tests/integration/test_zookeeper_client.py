"""Configured clients of a real ZooKeeper: chroot, login, TLS, ACLs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError
from kazoo.security import OPEN_ACL_UNSAFE
from support.brokers.zookeeper import ZooKeeperServer, path_of_its_own
from support.security import certificates

from kbroker.cli.kafka import table
from kbroker.client.zookeeper import znodes
from kbroker.config.loader import BrokerConfig
from kbroker.metastore.zookeeper_client import LastWarning, acl_of, make_chroot, new_client
from kbroker.metastore.zookeeper_settings import ZooKeeperSettings, settings_of
from kbroker.testing import wait_until
from perf import zookeeper_store
from perf.brokers import free_ports

pytestmark = pytest.mark.integration

PASSWORD = "keys"
JAAS = """
Server {{ org.apache.zookeeper.server.auth.DigestLoginModule required user_kafka="{0}"; }};
Client {{
  org.apache.zookeeper.server.auth.DigestLoginModule required username="kafka" password="{0}";
}};
"""


def settings(**named: str) -> ZooKeeperSettings:
    return settings_of(BrokerConfig({name.replace("_", "."): text for name, text in named.items()}))


@contextmanager
def connected(settings: ZooKeeperSettings) -> Iterator[KazooClient]:
    make_chroot(settings)
    client = new_client(settings)
    client.start(settings.connection_timeout_ms / 1000)
    try:
        yield client
    finally:
        client.stop()
        client.close()


def test_chroot_is_created_and_paths_are_below_it() -> None:
    place = path_of_its_own()
    found = settings(zookeeper_connect=f"{place}/b")
    with connected(found) as client:
        client.create("/node", b"here")
        make_chroot(found)  # a second time it is there
    server, _, path = place.partition("/")
    with connected(settings(zookeeper_connect=server)) as client:
        assert client.get(f"/{path}/b/node")[0] == b"here"


def test_reason_for_no_connection_is_kept() -> None:
    client = new_client(settings(zookeeper_connect=f"127.0.0.1:{free_ports(1)[0]}"))
    (last,) = client.logger.handlers
    assert isinstance(last, LastWarning)
    client.start_async()
    wait_until(lambda: "refused" in last.text)
    client.stop()
    client.close()


class SecureServer(NamedTuple):
    """secure: its port with TLS. made: its certificate and key, which clients may use, too.
    jaas: the logins of server and client.
    """

    server: ZooKeeperServer
    secure: str
    made: certificates.Certificate
    jaas: Path


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureServer]:
    if certificates.OPENSSL is None:
        pytest.skip("openssl is not installed")
    place = tmp_path_factory.mktemp("tls")
    made = certificates.make(place, "zookeeper")
    port = free_ports(1)[0]
    settings_of_server = {
        "secureClientPort": str(port),
        "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
        "ssl.keyStore.location": str(made.both),
        "ssl.keyStore.type": "PEM",
        "ssl.trustStore.location": str(made.certificate),
        "ssl.trustStore.type": "PEM",
        "ssl.hostnameVerification": "false",
        "authProvider.1": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
    }
    jaas = place / "jaas"
    jaas.write_text(JAAS.format(PASSWORD))
    jvm = (f"-Djava.security.auth.login.config={jaas}",)
    with ZooKeeperServer(place / "server", settings_of_server, jvm) as server:
        yield SecureServer(server, f"127.0.0.1:{port}", made, jaas)


def test_nodes_of_a_logged_in_broker_are_protected(secured: SecureServer) -> None:
    secure = settings(
        zookeeper_connect=f"{secured.server.connect}/kafka",
        java_security_auth_login_config=str(secured.jaas),
        zookeeper_set_acl="true",
    )
    with connected(secure) as client:
        for path in ("/brokers", "/config/users/u", "/consumers"):
            client.create(path, b"", acl_of(path, secure), makepath=True)
    with connected(settings(zookeeper_connect=f"{secured.server.connect}/kafka")) as other:
        assert other.get("/brokers")[0] == b""
        for forbidden in (
            lambda: other.set("/brokers", b"x"),
            lambda: other.get("/config/users/u"),
        ):
            with pytest.raises(NoAuthError):
                forbidden()
        other.set("/consumers", b"x")
        assert acl_of("/brokers", settings(zookeeper_connect="z")) == OPEN_ACL_UNSAFE


@pytest.mark.slow
def test_shell_speaks_tls(
    secured: SecureServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "tls.properties"
    rows = {
        "client.enable": "true",
        "protocol": "TLSv1.3",
        "keystore.location": secured.made.both,
        "truststore.location": secured.made.certificate,
        "truststore.type": "PEM",
    }

    def shell(*words: str) -> tuple[int, str, str]:
        file.write_text("".join(f"zookeeper.ssl.{name}={value}\n" for name, value in rows.items()))
        arguments = [secured.secure, "-zk-tls-config-file", str(file), *words]
        code = table.main(arguments, "zookeeper-shell")
        return code, *capsys.readouterr()

    assert shell("ls", "/zookeeper")[:2] == (
        0,
        f"Connecting to {secured.secure}\n\nWATCHER::\n\nWatchedEvent state:SyncConnected "
        "type:None path:null\n[config, quota]\n",
    )
    rows["truststore.location"] = certificates.make(tmp_path, "stranger").certificate
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(znodes, "_TIMEOUT_S", 1.0)
        code, _, said = shell("ls", "/")
    assert code == 1
    assert said.startswith(f"ZooKeeper could not be reached within 1 s: {secured.secure}: self")
    rows["keyStore.location"] = "x"
    assert "did you mean zookeeper.ssl.keystore.location?" in shell("ls", "/")[2]


def tls_file(secured: SecureServer, directory: Path) -> Path:
    """What ``--zk-tls-config-file`` names, with a certificate of the tool's own."""
    file = directory / "tls.properties"
    rows = {
        "client.enable": "true",
        "keystore.location": secured.made.both,
        "truststore.location": secured.made.certificate,
        "truststore.type": "PEM",
    }
    lines = [f"zookeeper.ssl.{name}={value}" for name, value in rows.items()]
    file.write_text("\n".join(["zookeeper.clientCnxnSocket=x.Y", *lines]))
    return file


@pytest.mark.slow
def test_tools_write_secured_what_they_protect(
    secured: SecureServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As Kafka's tools: who shows a certificate owns the nodes, and passwords are not for all."""
    file = tls_file(secured, tmp_path)
    where = f"{secured.secure}/written"
    user = ("--entity-type", "users", "--entity-name", "alice")
    words = ("--zookeeper", where, "--alter", *user, "--add-config", "producer_byte_rate=1000",
             "--zk-tls-config-file", str(file))  # fmt: skip
    assert table.main(words, "kafka-configs") == 0
    assert "entity: user-principal 'alice'." in capsys.readouterr().out
    by_authorizer = ("--authorizer-properties", f"zookeeper.connect={where}")
    words = (*by_authorizer, "--zk-tls-config-file", str(file), "--add", "--allow-principal",
             "User:alice", "--topic", "t")  # fmt: skip
    assert table.main(words, "kafka-acls") == 0
    capsys.readouterr()
    with connected(settings(zookeeper_connect=secured.server.connect)) as other:
        assert b"User:alice" in other.get("/written/kafka-acl/Topic/t")[0]
        for path in ("/written/kafka-acl/Topic/t", "/written/config/users/alice"):
            with pytest.raises(NoAuthError):
                other.set(path, b"")
        with pytest.raises(NoAuthError):
            other.get("/written/config/users/alice")


def test_tls_trusts_the_trust_store_alone(secured: SecureServer, tmp_path: Path) -> None:
    stranger = certificates.make(tmp_path, "stranger")
    trusting = settings(
        zookeeper_connect=secured.secure,
        zookeeper_ssl_client_enable="true",
        # ZooKeeper 3.9 supports nothing else without plug-ins.
        zookeeper_ssl_enabled_protocols="TLSv1.3",
        zookeeper_ssl_keystore_location=str(secured.made.both),
        zookeeper_ssl_truststore_location=str(secured.made.certificate),
        zookeeper_set_acl="true",
    )
    with connected(trusting) as client:
        client.create("/a", b"x" * 100_000, acl_of("/a", trusting))
        assert [len(one.get()[0]) for one in [client.get_async("/a") for _ in range(20)]] == [
            100_000
        ] * 20
    with connected(settings(zookeeper_connect=secured.server.connect)) as other:
        assert len(other.get("/a")[0]) == 100_000
        with pytest.raises(NoAuthError):
            other.set("/a", b"")
    distrusting = trusting._replace(
        tls=trusting.tls and trusting.tls._replace(trust_store=str(stranger.certificate))
    )
    client = new_client(distrusting)
    client.start_async()
    (last,) = client.logger.handlers
    wait_until(lambda: "certificate" in last.text.lower())
    client.stop()
    client.close()


def test_measurement_runs_and_leaves_nothing_of_its_topic(
    capsys: pytest.CaptureFixture[str],
) -> None:
    connect = path_of_its_own()
    assert zookeeper_store.main([connect, "--partitions", "20"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["create,", "get", "set,", "set,", "nodes"]
    with connected(settings(zookeeper_connect=connect)) as client:
        (place,) = client.get_children("/")
        assert client.get_children(f"/{place}/brokers/topics") == []
