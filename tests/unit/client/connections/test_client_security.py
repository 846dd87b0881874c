"""TLS and SASL configs: which are accepted, and which are rejected with advice."""

from __future__ import annotations

import pickle

import pytest

from kbroker.client import errors
from kbroker.client.connections.addresses import parse_addresses
from kbroker.client.connections.cluster import Cluster
from kbroker.client.connections.security import Security
from kbroker.client.errors import SettingRefused
from kbroker.wire import sasl

pytestmark = pytest.mark.unit

SCRAM = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "SCRAM-SHA-256",
    "sasl.username": "user",
    "sasl.password": "pencil",
}


def test_nothing_set_is_plaintext():
    security = Security.from_options({"bootstrap.servers": "x:1", "acks": "all"})

    assert (security.protocol, security.mechanism, security.uses_tls) == ("PLAINTEXT", None, False)


def test_security_travels_as_its_settings_and_hides_its_password():
    security = Security.from_options(SCRAM)
    copy = pickle.loads(pickle.dumps(security))

    assert copy == security
    assert hash(copy) == hash(security)
    assert "pencil" not in repr(security)


@pytest.mark.parametrize(
    ("jaas", "mechanism"),
    [
        (
            "org.apache.kafka.common.security.plain.PlainLoginModule required "
            'username="al\\"ice" password="s=e;c";',
            "PLAIN",
        ),
        (
            "org.apache.kafka.common.security.scram.ScramLoginModule  required\n"
            " username='al\"ice'\n password='s=e;c' ;\n",
            "SCRAM-SHA-512",
        ),
    ],
)
def test_jaas_configuration_names_user_and_password(jaas, mechanism):
    security = Security.from_options(
        {
            "security.protocol": "sasl_ssl",
            "sasl.mechanism": mechanism,
            "sasl.jaas.config": jaas,
        }
    )

    assert (security.username, security._password) == ('al"ice', "s=e;c")


@pytest.mark.parametrize(
    ("changed", "named", "advice"),
    [
        ({"security.protocol": "TLS"}, "security.protocol", "SASL_SSL"),
        ({"sasl.mechanism": "DIGEST-MD5"}, "sasl.mechanism", "SCRAM-SHA-256"),
        ({"sasl.mechanism": ""}, "sasl.mechanism", "GSSAPI"),
        ({"sasl.password": None}, "sasl.username", "sasl.jaas.config"),
        ({"sasl.kerberos.kinit.cmd": "kinit"}, "sasl.kerberos.kinit.cmd", "leave it out"),
        (
            {"sasl.mechanism": "GSSAPI", "sasl.kerberos.keytab": "/k"},
            "sasl.kerberos.principal",
            "has its keys",
        ),
        ({"sasl.oauthbearer.assertion.file": "x"}, "sasl.oauthbearer", "leave it out"),
        ({"ssl.engine.factory.class": "x"}, "ssl.engine.factory.class", "leave it out"),
        (
            {"security.protocol": "SSL", "ssl.truststore.password": "x"},
            "ssl.truststore.password",
            "leave it out",
        ),
        (
            {
                "security.protocol": "SSL",
                "ssl.keystore.location": "/a.pem",
                "ssl.keystore.type": "PEM",
                "ssl.keystore.password": "x",
            },
            "ssl.keystore.password",
            "ssl.key.password",
        ),
        (
            {"security.protocol": "SSL", "ssl.keystore.type": "BKS"},
            "ssl.keystore.type",
            "ssl.certificate.location",
        ),
        (
            {"security.protocol": "SSL", "ssl.enabled.protocols": "TLSv1.2,SSLv3"},
            "ssl.enabled.protocols",
            "TLSv1.3",
        ),
        (
            {"sasl.username": None, "sasl.password": None, "sasl.jaas.config": "nonsense"},
            "sasl.jaas.config",
            "ScramLoginModule required",
        ),
    ],
)
def test_settings_that_cannot_be_done_are_refused_in_words(changed, named, advice):
    options = {**SCRAM, **changed}
    options = {name: value for name, value in options.items() if value is not None}

    with pytest.raises(SettingRefused) as caught:
        Security.from_options(options)

    assert named in caught.value.setting or named.startswith(caught.value.setting)
    assert advice in str(caught.value)


def test_cluster_travels_as_its_settings():
    cluster = Cluster("a:1,b:2", Security.from_options(SCRAM), client_id="me", deadline=5)
    copy = pickle.loads(pickle.dumps(cluster))

    assert (copy.bootstrap, copy.security, copy.client_id, copy.deadline) == (
        "a:1,b:2",
        cluster.security,
        "me",
        5,
    )


def test_bootstrap_addresses_are_parsed():
    found = parse_addresses("a:1, [::1]:2,PLAINTEXT://c:3,")

    assert found == [("a", 1), ("::1", 2), ("c", 3)]


@pytest.mark.parametrize("text", ["", "a", "a:", ":9092", "a:0", "a:65536", "a:b", ","])
def test_bootstrap_that_is_no_address_is_refused(text):
    with pytest.raises(SettingRefused, match="host:port"):
        parse_addresses(text)


@pytest.mark.parametrize(
    "error",
    [
        errors.RejectedError(3, "produce to t-0", "words"),
        errors.RejectedError(12345, "x"),
        errors.Timeout("records", 1.5, "because"),
        errors.UnreachableError({"a:1": "refused"}, 3.0),
        errors.ConnectionLost("a:1", "gone"),
        errors.ProtocolViolation("a:1", "nonsense"),
        errors.AuthenticationFailed("a:1", "no"),
        errors.UnsupportedByBroker("a:1", "Fetch"),
        errors.OffsetOutOfRange("t", 0, 5, 10, 20),
        errors.TopicChanged("t", "was deleted"),
        errors.CorruptRecords("t", 0, 5, "checksum"),
        errors.SettingRefused("ssl.x", "leave it out"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_travel_between_processes(error):
    copy = pickle.loads(pickle.dumps(error))

    assert type(copy) is type(error)
    assert (str(copy), copy.code, copy.retriable) == (str(error), error.code, error.retriable)
    assert vars(copy) == vars(error)


def test_scram_proves_what_the_rfc_shows():
    """RFC 7677 section 3, the example of SCRAM-SHA-256."""
    client = sasl.Scram("user", "pencil", "sha256", nonce="rOprNGfwEbeRWgbNEkqO")
    assert client.evaluate(None) == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"

    final = client.evaluate(
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )

    assert final == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert client.evaluate(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=") is None
    assert client.done


@pytest.mark.parametrize(
    ("first", "final", "why"),
    [
        (b"r=other,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096", b"", "nonce"),
        (b"r=noncex,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=1", b"", "iterations"),
        (b"r=noncex,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=99999999", b"", "iterations"),
        (b"r=noncex,i=4096", b"", "malformed"),
        (b"r=noncex,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096", b"v=AAAA", "prove"),
        (b"r=noncex,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096", b"e=unknown-user", "unknown-user"),
    ],
)
def test_scram_believes_no_server_that_cannot_prove_itself(first, final, why):
    client = sasl.Scram("user", "pencil", "sha256", nonce="nonce")
    client.evaluate(None)

    with pytest.raises(sasl.ExchangeFailed, match=why):
        client.evaluate(first)
        client.evaluate(final)
