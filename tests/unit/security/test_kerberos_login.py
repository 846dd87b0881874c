"""The configs of GSSAPI: what refuses the start, and what the reason is."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from kbroker.config.loader import BrokerConfig
from kbroker.errors import ConfigError, FileConfigError
from kbroker.handlers.support.sasl_listener import sasl_listener
from kbroker.security.sasl import kerberos_library
from kbroker.security.sasl.kerberos import Kerberos
from kbroker.security.sasl.kerberos_library import KerberosError
from kbroker.security.sasl.kerberos_login import KerberosLogin, kerberos_login

pytestmark = pytest.mark.unit

MODULE = "com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true storeKey=true"
KEYS = 'keyTab="/etc/kafka.keytab" principal="kafka/host@R"'
JAAS = "listener.name.plaintext.gssapi.sasl.jaas.config"


def config(options: str = KEYS, module: str = MODULE, **more: str) -> BrokerConfig:
    named = {name.replace("__", "."): value for name, value in more.items()}
    base = {"sasl.enabled.mechanisms": "GSSAPI", "sasl.kerberos.service.name": "kafka"}
    return BrokerConfig(base | {JAAS: f"{module} {options};"} | named)


def found(made: BrokerConfig) -> KerberosLogin:
    return kerberos_login(made, made.of_listener("PLAINTEXT", "GSSAPI"))


def test_login_is_that_of_the_listeners_login_module() -> None:
    assert found(config()) == ("kafka/host@R", "/etc/kafka.keytab", "kafka")
    named = 'keyTab="FILE:/k" principal="a/h" serviceName="kafka"'
    assert found(config(named)) == ("a/h", "/k", "kafka")
    in_it = config('principal="a/h" serviceName="a"', sasl__kerberos__service__name="")
    assert found(in_it) == ("a/h", "", "a")


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (config(""), "useKeyTab=true storeKey=true"),
        (config(KEYS, "x.Krb5LoginModule required storeKey=true"), "useKeyTab=true"),
        (config(KEYS, "x.Krb5LoginModule required useKeyTab=true"), "storeKey=true"),
        (config('keyTab="/k" principal="*"'), "principal="),
        (config(KEYS, "x.PlainLoginModule required"), "one login module, a Krb5LoginModule"),
        (config(sasl__kerberos__service__name=""), "the first part of the brokers' principals"),
        (config(KEYS + ' serviceName="other"'), "serviceName in sasl.jaas.config"),
        (config(**{JAAS.replace(".", "__"): ""}), "Krb5LoginModule required"),
    ],
)
def test_login_that_cannot_be_used_is_refused(made: BrokerConfig, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        found(made)


class Keys:
    """In place of a key tab."""

    default_realm = "R"

    def __init__(self, principal: str, key_tab: str) -> None:
        if key_tab == "/nowhere":
            raise KerberosError("cannot read the key tab /nowhere: No such file or directory")

    def context(self) -> Any:
        return None


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kbroker.security.sasl.kerberos_login.Acceptor", Keys)


def test_listener_offers_gssapi(keys: None) -> None:
    listener = sasl_listener(config(), "PLAINTEXT")
    assert listener.mechanisms == ["GSSAPI"]
    assert listener.warnings == ()
    assert isinstance(listener.begin["GSSAPI"](), Kerberos)


def test_keys_of_another_service_than_clients_look_for_are_told(keys: None) -> None:
    (warning,) = sasl_listener(config(sasl__kerberos__service__name="other"), "PLAINTEXT").warnings
    assert "clients look for other/<host>" in warning


def test_key_tab_that_cannot_be_read_is_refused(keys: None) -> None:
    absent = KEYS.replace("/etc/kafka.keytab", "/nowhere")
    with pytest.raises(FileConfigError, match="No such file") as caught:
        sasl_listener(config(absent), "PLAINTEXT")
    assert caught.value.key == JAAS


def test_malformed_rules_are_refused(keys: None) -> None:
    name = "sasl.kerberos.principal.to.local.rules"
    with pytest.raises(ConfigError, match="RULE:nothing") as caught:
        made = config(**{name.replace(".", "__"): "RULE:nothing,DEFAULT"})
        sasl_listener(made, "PLAINTEXT")
    assert caught.value.key == name
    with pytest.raises(ConfigError, match="no value for GSSAPI"):
        sasl_listener(config(sasl__server__callback__handler__class="x.y"), "PLAINTEXT")


def test_without_the_package_the_start_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> Any:
        raise ImportError("libgssapi_krb5.so.2: cannot open shared object file")

    monkeypatch.setattr(kerberos_library, "_library", absent)
    with pytest.raises(ConfigError, match=r"pip install gssapi \(libgssapi_krb5"):
        sasl_listener(config(), "PLAINTEXT")


@pytest.mark.parametrize("kind", ["absent", "folder", "fifo"])
def test_key_tab_that_is_no_file_is_named(tmp_path: Path, kind: str) -> None:
    """The library would wait for a writer of a FIFO."""
    path = tmp_path / "keys"
    if kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    with pytest.raises(KerberosError, match=str(path)):
        kerberos_library._check_readable(str(path))
