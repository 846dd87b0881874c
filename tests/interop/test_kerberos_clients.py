"""GSSAPI with a real Kerberos server: kafka-python, librdkafka (kcat) and Java clients log in, and
are told why they do not; hostile tokens get Kafka's errors.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from support.clients.wire_client import WireClient
from support.drivers.java import FIRST_TEST_TIMEOUT_S, java_missing
from support.drivers.secure_java import JavaClients
from support.security.kerberos import (
    HOST,
    MODULE,
    OTHER_REALM,
    REALM,
    SERVICE,
    Kdc,
    gssapi_or_skip,
    kerberos_missing,
)

from kbroker.client.connections.cluster import Cluster
from kbroker.client.connections.security import Security
from kbroker.client.errors import AuthenticationFailed
from kbroker.errors import ErrorCode
from kbroker.protocol.messages.metadata import MetadataRequest
from kbroker.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from kbroker.protocol.messages.sasl_handshake import SaslHandshakeRequest
from kbroker.testing import Broker, BrokerFailed
from kbroker.testing.ports import HeldPort

pytestmark = [
    pytest.mark.interop,
    pytest.mark.slow,
    pytest.mark.timeout(FIRST_TEST_TIMEOUT_S),
    pytest.mark.skipif(bool(kerberos_missing()), reason=kerberos_missing()),
]

OWN = "listener.name.sasl_plaintext.gssapi.sasl.jaas.config"
ALICE, EVE = f"alice@{REALM}", f"eve@{OTHER_REALM}"
BROKER, OTHER_SERVICE = f"{SERVICE}/{HOST}@{REALM}", f"http/{HOST}@{REALM}"
TOLD = "Authentication failed during authentication due to invalid credentials with SASL mechanism"
VERSIONS = ("2.7.2", "3.9.1", "4.3.0")
# Writes a record, reads it, and prints what the user is told.
KAFKA_PYTHON = """
import logging, sys
logging.basicConfig(level="ERROR", stream=sys.stdout)
from kafka import KafkaConsumer, KafkaProducer
settings = dict(bootstrap_servers=sys.argv[1], security_protocol="SASL_PLAINTEXT",
                sasl_mechanism="GSSAPI", sasl_kerberos_service_name="kafka")
try:
    producer = KafkaProducer(max_block_ms=5000, **settings)
    producer.send("by-kafka-python", b"x").get(timeout=20)
    consumer = KafkaConsumer("by-kafka-python", auto_offset_reset="earliest",
                             consumer_timeout_ms=20000, **settings)
    print("read", next(consumer).value)
except Exception as error:
    print("failed", repr(error))
"""


class Site:
    """The Kerberos server, and the keys of who is known to it."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.kdc = Kdc(place)
        self.port = HeldPort()
        self.keys = {name: self.kdc.key_tab(name) for name in (BROKER, OTHER_SERVICE, ALICE, EVE)}

    def settings(self, principal: str = BROKER, key_tab: Path | None = None) -> dict[str, str]:
        keys = key_tab or self.keys[principal]
        return {
            "listeners": f"SASL_PLAINTEXT://{HOST}:{self.port.number}",
            "advertised.listeners": f"SASL_PLAINTEXT://{HOST}:{self.port.number}",
            "sasl.enabled.mechanisms": "GSSAPI",
            "sasl.kerberos.service.name": SERVICE,
            OWN: f'{MODULE} keyTab="{keys}" principal="{principal}";',
            "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
            "super.users": "User:alice",
            "connections.max.reauth.ms": "3000",
        }

    def jaas(self, principal: str) -> str:
        """Of a Java client."""
        return f'{MODULE} keyTab="{self.keys[principal]}" principal="{principal}";'


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    gssapi_or_skip()
    found = Site(tmp_path_factory.mktemp("kerberos"))
    with pytest.MonkeyPatch.context() as patched:
        for name, value in found.kdc.environment.items():
            patched.setenv(name, value)
        yield found
    found.kdc.close()
    found.port.release()


@pytest.fixture(scope="module")
def broker(site: Site) -> Iterator[Broker]:
    with Broker(site.settings()) as started:
        yield started


def bootstrap(broker: Broker) -> str:
    """By the name that its principal has."""
    return f"{HOST}:{broker.port}"


def by_kafka_python(broker: Broker, environment: Mapping[str, str]) -> str:
    command = [sys.executable, "-c", KAFKA_PYTHON, bootstrap(broker)]
    done = subprocess.run(
        command, env=dict(environment), capture_output=True, text=True, timeout=120
    )
    return done.stdout + done.stderr


# -- kafka-python and kcat


def test_kafka_python_writes_and_reads(site: Site, broker: Broker) -> None:
    tickets = site.kdc.log_in(ALICE, site.keys[ALICE])
    assert "read b'x'" in by_kafka_python(broker, tickets)


def test_kafka_python_without_a_ticket_says_so(site: Site, broker: Broker) -> None:
    told = by_kafka_python(broker, site.kdc.environment)
    assert "No Kerberos credentials available" in told or "MissingCredentials" in told, told


def test_client_of_another_realm_is_nobody(site: Site, broker: Broker) -> None:
    """The realms trust each other, so its ticket is right, but no rule makes a user of it."""
    tickets = site.kdc.log_in(EVE, site.keys[EVE])
    assert f"{TOLD} GSSAPI" in by_kafka_python(broker, tickets)
    assert f"as '{EVE}' by SASL GSSAPI: no rule of" in broker.log_text


def test_kcat_writes(site: Site, broker: Broker) -> None:
    if shutil.which("kcat") is None:
        pytest.skip("kcat is not installed")
    settings = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "GSSAPI",
        "sasl.kerberos.service.name": SERVICE,
        "sasl.kerberos.keytab": site.keys[ALICE],
        "sasl.kerberos.principal": ALICE,
    }
    options = [part for name, value in settings.items() for part in ("-X", f"{name}={value}")]
    command = ["kcat", "-b", bootstrap(broker), "-P", "-t", "by-kcat", *options]
    done = subprocess.run(
        command,
        env={
            **site.kdc.environment,
            "KRB5CCNAME": f"FILE:{site.place}/tickets-of-kcat",  # it runs kinit
            "PATH": "/usr/sbin:/usr/bin:/bin",
        },
        input="x", capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    if "No worthy mechs found" in done.stderr:
        pytest.skip("needs libsasl2-modules-gssapi-mit")
    assert done.returncode == 0, done.stderr


# -- kbroker.client


def own_cluster(broker: Broker, **settings: Any) -> Cluster:
    options = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "GSSAPI",
        **{name.replace("_", "."): str(value) for name, value in settings.items()},
    }
    return Cluster(bootstrap(broker), Security.from_options(options), deadline=20)


def test_own_client_logs_in_with_a_key_tab(site: Site, broker: Broker) -> None:
    keys = {"sasl_kerberos_keytab": site.keys[ALICE], "sasl_kerberos_principal": ALICE}
    for settings in (keys, {"sasl_jaas_config": site.jaas(ALICE)}):
        with own_cluster(broker, **settings) as cluster:
            assert isinstance(cluster.topics(), dict)


@pytest.mark.usefixtures("alice")
def test_own_client_logs_in_with_its_ticket(broker: Broker) -> None:
    with own_cluster(broker) as cluster:
        assert isinstance(cluster.topics(), dict)


@pytest.mark.parametrize("what", ["no ticket", "no user", "other keys", "other service"])
def test_own_client_tells_what_is_wrong(site: Site, broker: Broker, what: str) -> None:
    settings, told = {
        "no ticket": ({}, "No Kerberos credentials available"),
        "no user": (
            {"sasl_kerberos_keytab": site.keys[EVE], "sasl_kerberos_principal": EVE},
            f"{TOLD} GSSAPI",
        ),
        "other keys": (
            {"sasl_kerberos_keytab": site.keys[EVE], "sasl_kerberos_principal": ALICE},
            "SASL GSSAPI: ",
        ),
        "other service": ({"sasl_kerberos_service_name": "nobody"}, "SASL GSSAPI: "),
    }[what]
    with (
        pytest.raises(AuthenticationFailed, match=told),
        own_cluster(broker, **settings) as cluster,
    ):
        cluster.topics()


# -- Java


@pytest.fixture(scope="module")
def java(site: Site) -> Iterator[Callable[[str], JavaClients]]:
    if java_missing():
        pytest.skip(java_missing())
    made: dict[str, JavaClients] = {}

    def get(version: str) -> JavaClients:
        if version not in made:
            properties = {"java.security.krb5.conf": site.kdc.environment["KRB5_CONFIG"]}
            made[version] = JavaClients(version, site.place, properties)
        return made[version]

    yield get
    for one in made.values():
        one.close()


def java_settings(site: Site, broker: Broker, principal: str, version: str) -> dict[str, str]:
    return {
        "bootstrap.servers": bootstrap(broker),
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "GSSAPI",
        "sasl.kerberos.service.name": SERVICE,
        "sasl.jaas.config": site.jaas(principal),
        "topic": f"by-java-{version}",
        "request.timeout.ms": "20000",
        "default.api.timeout.ms": "20000",
    }


@pytest.mark.java
@pytest.mark.parametrize("version", VERSIONS)
def test_java_writes_and_reads(
    site: Site, broker: Broker, java: Callable[[str], JavaClients], version: str
) -> None:
    settings = java_settings(site, broker, ALICE, version)
    assert java(version).use(settings) == "ok"


@pytest.mark.java
@pytest.mark.parametrize("version", VERSIONS)
def test_java_of_another_realm_is_told(
    site: Site, broker: Broker, java: Callable[[str], JavaClients], version: str
) -> None:
    told = java(version).use(java_settings(site, broker, EVE, version))
    assert "SaslAuthenticationException" in told
    assert f"{TOLD} GSSAPI" in told


# -- on the wire


class Initiator:
    """A client's end of the security context."""

    def __init__(self, service: str = f"{SERVICE}@{HOST}") -> None:
        import gssapi

        name = gssapi.Name(service, gssapi.NameType.hostbased_service)
        mechanism = gssapi.MechType.kerberos
        self._context = gssapi.SecurityContext(
            name=name.canonicalize(mechanism), mech=mechanism, usage="initiate"
        )
        self.first = self._context.step()

    def last(self, answer: bytes, offer: bytes, chosen: bytes = b"\x01\0\0\0") -> bytes:
        self._context.step(answer)
        assert self._context.unwrap(offer).message == b"\x01\0\0\0"
        return bytes(self._context.wrap(chosen, False).message)


@pytest.fixture
def alice(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process has her ticket."""
    tickets = site.kdc.log_in(ALICE, site.keys[ALICE])
    monkeypatch.setenv("KRB5CCNAME", tickets["KRB5CCNAME"])


def connected(broker: Broker, version: int = 1) -> WireClient:
    client = WireClient((broker.host, broker.port))
    assert client.call(SaslHandshakeRequest(mechanism="GSSAPI"), version).error_code == 0
    return client


def answered(client: WireClient, token: bytes) -> Any:
    return client.call(SaslAuthenticateRequest(auth_bytes=token), 2)


@pytest.mark.usefixtures("alice")
def test_last_token_without_a_header_has_no_response(broker: Broker) -> None:
    """Clients before 1.0 would take one for the response to their next request."""
    with connected(broker, version=0) as client:
        ours = Initiator()

        def raw(token: bytes) -> bytes:
            client.socket.sendall(len(token).to_bytes(4, "big") + token)
            return client.receive()

        last = ours.last(raw(ours.first), raw(b""))
        client.socket.sendall(len(last).to_bytes(4, "big") + last)
        assert client.call(MetadataRequest(topics=[]), 1).brokers


@pytest.mark.usefixtures("alice")
def test_hostile_tokens_get_kafkas_error_and_the_log_has_the_reason(
    site: Site, broker: Broker
) -> None:
    first = Initiator().first
    garbled = bytearray(first)
    garbled[len(first) // 2] ^= 0xFF
    for token in (
        b"", b"\0", b"\x60", b"x" * 400_000, first[:-1], first[: len(first) // 2], first + b"x",
        bytes(garbled), b"\0alice\0secret", b"n,,n=alice,r=x", b"\x60\x84\xff\xff\xff\xff",
        b"\x60\x06\x06\x06\x2b\x06\x01\x05\x05\x02",
    ):  # fmt: skip
        with connected(broker) as client:
            response = answered(client, token)
            assert response.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED, token[:50]
            assert response.error_message == f"{TOLD} GSSAPI"
            assert client.is_closed(20)
    reasons = "by SASL GSSAPI: (Invalid token was supplied|No credentials were supplied)"
    assert re.search(reasons, broker.log_text)


@pytest.mark.usefixtures("alice")
@pytest.mark.parametrize("chosen", [b"", b"\x01", b"\x02\0\0\0", b"\x04\0\xff\xff"])
def test_security_layer_is_not_had(broker: Broker, chosen: bytes) -> None:
    with connected(broker) as client:
        ours = Initiator()
        last = ours.last(
            answered(client, ours.first).auth_bytes, answered(client, b"").auth_bytes, chosen
        )
        assert answered(client, last).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED


@pytest.mark.usefixtures("alice")
def test_conversation_that_is_played_again_lets_nobody_in(broker: Broker) -> None:
    """The connection is closed without a word, as Kafka does: the client may try again."""
    ours = Initiator()
    with connected(broker) as client:
        last = ours.last(answered(client, ours.first).auth_bytes, answered(client, b"").auth_bytes)
        assert answered(client, last).error_code == 0
        assert client.call(MetadataRequest(topics=[]), 1).brokers
    with connected(broker) as client, pytest.raises(OSError):
        answered(client, ours.first)


@pytest.mark.usefixtures("alice")
def test_ticket_for_another_service_is_refused(broker: Broker) -> None:
    with connected(broker) as client:
        response = answered(client, Initiator(f"http@{HOST}").first)
        assert response.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED


@pytest.mark.usefixtures("alice")
def test_authorization_id_makes_nobody_another(broker: Broker) -> None:
    with connected(broker) as client:
        ours = Initiator()
        answer, offer = (answered(client, token).auth_bytes for token in (ours.first, b""))
        last = ours.last(answer, offer, b"\x01\0\0\0root@" + REALM.encode())
        response = answered(client, last)
        assert response.error_code == 0
        assert 0 < response.session_lifetime_ms <= 3000


def test_key_that_is_changed_counts_at_once(site: Site, broker: Broker) -> None:
    site.kdc.change_key(BROKER, site.keys[BROKER])
    tickets = site.kdc.log_in(ALICE, site.keys[ALICE])
    assert "read b'x'" in by_kafka_python(broker, tickets)


# -- starts


def test_start_without_keys_is_refused_with_the_reason(site: Site, tmp_path: Path) -> None:
    for settings, told in (
        (site.settings(key_tab=tmp_path / "absent"), "No such file or directory"),
        (site.settings(key_tab=site.keys[ALICE]), "No key table entry found for kafka/localhost"),
        (site.settings() | {OWN: ""}, "Krb5LoginModule required"),
        (site.settings() | {"sasl.kerberos.principal.to.local.rules": "RULE:[1:$1"}, "RULE:"),
    ):
        broker = Broker(settings)
        try:
            with pytest.raises(BrokerFailed) as caught:
                broker.start()
        finally:
            broker.close()
        assert "exited with 2" in str(caught.value)
        assert told in str(caught.value)
