"""The zookeeper.* configs, and the texts of their errors."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.security import certificates

from kbroker.config.loader import BrokerConfig
from kbroker.errors import ConfigError
from kbroker.metastore.zookeeper_settings import (
    Digest,
    ZooKeeperSettings,
    jaas_section,
    parse_connect,
    settings_of,
)

pytestmark = pytest.mark.unit

needs_openssl = pytest.mark.skipif(certificates.OPENSSL is None, reason="openssl is not installed")

JAAS = """
// of the broker
Server { org.apache.zookeeper.server.auth.DigestLoginModule required user_x="Client {"; };
Client {
  org.apache.zookeeper.server.auth.DigestLoginModule required
    username="kafka"
    password="a;}b";
};
"""


def settings(**named: str) -> ZooKeeperSettings:
    named.setdefault("zookeeper_connect", "z:2181")
    return settings_of(BrokerConfig({name.replace("_", "."): text for name, text in named.items()}))


@pytest.mark.parametrize(
    ("text", "hosts", "chroot"),
    [
        ("z", [("z", 2181)], ""),
        ("a:1,b:2", [("a", 1), ("b", 2)], ""),
        (" a:1 , b /kafka/one/ ", [("a", 1), ("b", 2181)], "/kafka/one"),
        ("[::1]:2182,[fe80::2]/", [("::1", 2182), ("fe80::2", 2181)], ""),
    ],
)
def test_connect_is_hosts_and_a_path(text: str, hosts: list[tuple[str, int]], chroot: str) -> None:
    assert parse_connect(text) == (hosts, chroot)


@pytest.mark.parametrize("text", ["", "/kafka", "a:1,,b", "a:x", "a:70000", "a:1/x//y", "a:1/../b"])
def test_connect_that_names_nobody_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"expected host:port,host:port/path"):
        parse_connect(text)


def test_settings_say_how_to_connect() -> None:
    found = settings(zookeeper_connect="[::1]:1,b/c", zookeeper_session_timeout_ms="6000")
    assert found.connect == "[::1]:1,b:2181/c"
    assert found.hosts_text == "[::1]:1,b:2181"
    assert (found.session_timeout_ms, found.connection_timeout_ms, found.window) == (6000, 6000, 10)
    assert found.tls is None
    assert found.digest is None
    assert not found.protects_nodes
    assert settings(zookeeper_connection_timeout_ms="1").connection_timeout_ms == 1


def refused(**named: str) -> ConfigError:
    with pytest.raises(ConfigError) as found:
        settings(**named)
    return found.value


def test_protected_nodes_need_an_identity() -> None:
    error = refused(zookeeper_set_acl="true")
    assert error.key == "zookeeper.set.acl"
    assert "zookeeper.ssl.keystore.location" in error.allowed


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("crl_enable", "true", "revocation"),
        ("ocsp_enable", "true", "revocation"),
        ("cipher_suites", "TLS_AES_128_GCM_SHA256", "OpenSSL chooses"),
        ("protocol", "TLSv1.1", "TLSv1.2 or TLSv1.3"),
        ("enabled_protocols", "TLSv1.3,SSLv3", "TLSv1.2 or TLSv1.3"),
    ],
)
def test_what_tls_cannot_keep_is_refused(name: str, value: str, words: str) -> None:
    error = refused(zookeeper_ssl_client_enable="true", **{f"zookeeper_ssl_{name}": value})
    assert error.key == f"zookeeper.ssl.{name.replace('_', '.')}"
    assert words in error.allowed


@needs_openssl
def test_pem_stores_make_a_context(tmp_path: Path) -> None:
    made = certificates.make(tmp_path, "broker", password="secret")
    found = settings(
        zookeeper_ssl_client_enable="true",
        zookeeper_ssl_keystore_location=str(made.both),
        zookeeper_ssl_keystore_password="secret",
        zookeeper_ssl_truststore_location=str(made.certificate),
        zookeeper_ssl_enabled_protocols="TLSv1.3,TLSv1.2",
        zookeeper_ssl_endpoint_identification_algorithm="",
        zookeeper_set_acl="true",
    )
    assert found.tls is not None
    context = found.tls.context()
    assert [len(context.get_ca_certs()), context.check_hostname] == [1, False]
    assert context.minimum_version < context.maximum_version


@needs_openssl
def test_wrong_password_of_a_key_is_refused_at_the_start(tmp_path: Path) -> None:
    made = certificates.make(tmp_path, "broker", password="secret")
    error = refused(
        zookeeper_ssl_client_enable="true", zookeeper_ssl_keystore_location=str(made.both)
    )
    assert "zookeeper.ssl.keystore.password" in error.allowed


@pytest.mark.parametrize("kind", ["keystore", "truststore"])
def test_stores_of_java_are_refused_with_the_way_out(tmp_path: Path, kind: str) -> None:
    store = tmp_path / "store.jks"
    store.write_bytes(b"\xfe\xed\xfe\xed")
    named = {f"zookeeper_ssl_{kind}_location": str(store)}
    error = refused(zookeeper_ssl_client_enable="true", **named)
    assert error.key == f"zookeeper.ssl.{kind}.location"
    assert "keytool" in error.allowed
    missing = refused(
        zookeeper_ssl_client_enable="true",
        **{f"zookeeper_ssl_{kind}_location": str(tmp_path / "none")},
    )
    assert "can be read" in missing.allowed


def test_credentials_are_in_the_client_section(tmp_path: Path) -> None:
    file = tmp_path / "jaas"
    file.write_text(JAAS)
    found = settings(java_security_auth_login_config=str(file), zookeeper_set_acl="true")
    assert found.digest == Digest("kafka", "a;}b")
    file.write_text(JAAS.replace("Client {\n", "Other {\n"))
    assert settings(java_security_auth_login_config=str(file)).digest is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Client { com.sun.security.auth.module.Krb5LoginModule required; };", "Krb5LoginModule"),
        (JAAS.replace('username="kafka"', ""), "username and password"),
    ],
)
def test_other_logins_are_refused(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "jaas"
    file.write_text(text)
    assert words in refused(java_security_auth_login_config=str(file)).allowed


def test_unquoted_options_are_read() -> None:
    assert jaas_section("Client { a.B required x=1 y=z; };", "Client") == (
        "a.B",
        {"x": "1", "y": "z"},
    )
