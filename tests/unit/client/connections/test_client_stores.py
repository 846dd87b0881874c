"""JKS and PKCS12 stores of a client."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.security.java_stores import jks, jks_key, jks_trusted, pkcs12_of

from kbroker.client.connections.security import Security
from kbroker.client.errors import SettingRefused
from kbroker.security.certificates import Authority, Issued, create_authority

pytestmark = pytest.mark.unit

PASSWORD = "store-secret"


@pytest.fixture(scope="module")
def authority() -> Authority:
    return create_authority("test CA")


@pytest.fixture(scope="module")
def issued(authority: Authority) -> Issued:
    return authority.issue("client")


def context(**settings: Any) -> Any:
    options = {name.replace("_", "."): str(value) for name, value in settings.items()}
    return Security.from_options({"security.protocol": "SSL", **options}).tls_context()


def test_trust_store_of_java_is_read(authority: Authority, tmp_path: Path) -> None:
    place = tmp_path / "trust.jks"
    place.write_bytes(jks(PASSWORD, jks_trusted(authority.certificate)))
    for more in ({}, {"ssl_truststore_type": "JKS"}, {"ssl_truststore_type": "pkcs12"}):
        made = context(ssl_truststore_location=place, ssl_truststore_password=PASSWORD, **more)
        (found,) = made.get_ca_certs()
        assert found["subject"] == ((("commonName", "test CA"),),)


@pytest.mark.parametrize("kind", ["JKS", "PKCS12"])
def test_key_store_of_java_is_read(issued: Issued, tmp_path: Path, kind: str) -> None:
    place = tmp_path / "keys"
    data = {
        "JKS": lambda: jks(PASSWORD, jks_key(issued, PASSWORD)),
        "PKCS12": lambda: pkcs12_of(issued, PASSWORD),
    }[kind]()
    place.write_bytes(data)
    settings = {"ssl_keystore_location": place, "ssl_keystore_type": kind}
    context(**settings, ssl_keystore_password=PASSWORD)
    with pytest.raises(SettingRefused, match="expected the password of the key"):
        context(**settings)
    with pytest.raises(SettingRefused, match="a store that loads") as caught:
        context(**settings, ssl_keystore_password="Zq7-wrong")
    assert "Zq7" not in str(caught.value)


def test_store_that_is_another_is_refused(issued: Issued, tmp_path: Path) -> None:
    place = tmp_path / "keys.pem"
    place.write_bytes(issued.pem)
    with pytest.raises(SettingRefused, match="PEM needs ssl"):
        context(ssl_truststore_location=place)
    with pytest.raises(SettingRefused, match="No such file"):
        context(ssl_truststore_location=tmp_path / "absent")
