"""Java clients of Kafka 2.7.2, 3.9.1 and 4.3.0, librdkafka, kafka-python, aiokafka over SASL_SSL:
every mechanism and version of TLS that they have, and what they tell their users if it fails.
"""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import aiokafka
import aiokafka.abc
import aiokafka.errors
import confluent_kafka
import kafka
import kafka.errors
import pytest
from confluent_kafka.admin import AdminClient
from support.drivers.java import FIRST_TEST_TIMEOUT_S, java_missing
from support.drivers.secure_java import JavaClients
from support.running.grids import some_of
from support.security.secured import JAAS

from kbroker.client.admin import users as admin
from kbroker.client.connections.cluster import Cluster
from kbroker.security.certificates import create_authority
from kbroker.testing import Broker, wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(FIRST_TEST_TIMEOUT_S)]

HOST = "127.0.0.1"
USER, PASSWORD = "alice", "Zq7-alice"
VERSIONS = ("2.7.2", "3.9.1", "4.3.0")
SCRAM = ("SCRAM-SHA-256", "SCRAM-SHA-512")
PASSWORDS = ("PLAIN", *SCRAM)
MECHANISMS = (*PASSWORDS, "OAUTHBEARER")
PROTOCOLS = ("TLSv1.2", "TLSv1.3")
MODULES = {
    "PLAIN": "plain.PlainLoginModule",
    "SCRAM-SHA-256": "scram.ScramLoginModule",
    "SCRAM-SHA-512": "scram.ScramLoginModule",
    "OAUTHBEARER": "oauthbearer.OAuthBearerLoginModule",
}
UNSECURED = (
    "org.apache.kafka.common.security.oauthbearer.internals.unsecured."
    "OAuthBearerUnsecuredValidatorCallbackHandler"
)
# Where the class is that takes tokens from a file; 2.7.2 has none.
TOKENS = {
    "3.9.1": "org.apache.kafka.common.security.oauthbearer.secured.OAuthBearerLoginCallbackHandler",
    "4.3.0": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler",
}
# What a user is told of a wrong password.
REFUSED = {
    "PLAIN": "Authentication failed: Invalid username or password",
    **dict.fromkeys(SCRAM, "Authentication failed during authentication due to invalid credential"),
}


class Site(NamedTuple):
    """Files of certificates, and the key that signs tokens. elsewhere: of another host's name."""

    place: Path
    trust: Path
    broker: Path
    elsewhere: Path
    stranger: Path
    key: Any

    def token(self, **claims: Any) -> str:
        import jwt

        now = int(time.time())
        body = {"sub": USER, "aud": "kafka", "iat": now, "exp": now + 600, **claims}
        return str(jwt.encode(body, self.key, algorithm="ES256", headers={"kid": "k1"}))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    jwt = pytest.importorskip("jwt", reason="needs PyJWT (pip: kbroker[oauth])")
    from cryptography.hazmat.primitives.asymmetric import ec

    place = tmp_path_factory.mktemp("site")
    authority = create_authority("test CA")
    files = [place / f"{name}.pem" for name in ("trust", "broker", "elsewhere", "stranger")]
    found = Site(place, *files, ec.generate_private_key(ec.SECP256R1()))
    found.trust.write_bytes(authority.certificate)
    found.broker.write_bytes(authority.issue("broker", hosts=[HOST], server=True).pem)
    other = authority.issue("other", hosts=["elsewhere.example"], server=True)
    found.elsewhere.write_bytes(other.pem)
    found.stranger.write_bytes(create_authority("another CA").certificate)
    public = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(found.key.public_key()))
    (place / "jwks.json").write_text(json.dumps({"keys": [public | {"kid": "k1"}]}))
    return found


@pytest.fixture(scope="module")
def broker(site: Site) -> Iterator[Broker]:
    listeners = ("PLAINTEXT", "SASL_SSL", "OLD", "UNSIGNED", "ELSEWHERE")
    secured = dict.fromkeys(listeners[2:], "SASL_SSL")
    url = (site.place / "jwks.json").as_uri()
    settings = {
        "listeners": ",".join(f"{name}://{HOST}:0" for name in listeners),
        "listener.security.protocol.map": ",".join(
            f"{name}:{secured.get(name, name)}" for name in listeners
        ),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": site.broker,
        "listener.name.elsewhere.ssl.keystore.type": "PEM",
        "listener.name.elsewhere.ssl.keystore.location": site.elsewhere,
        "listener.name.old.ssl.enabled.protocols": "TLSv1.2",
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "listener.name.unsigned.sasl.enabled.mechanisms": "OAUTHBEARER",
        "listener.name.unsigned.oauthbearer.sasl.server.callback.handler.class": UNSECURED,
        "sasl.oauthbearer.jwks.endpoint.url": url,
        "sasl.oauthbearer.allowed.urls": url,
    }
    for name in ("sasl_ssl", "old", "elsewhere"):
        text = JAAS.format(f'user_{USER}="{PASSWORD}"')
        settings[f"listener.name.{name}.plain.sasl.jaas.config"] = text
        settings[f"listener.name.{name}.sasl.oauthbearer.expected.audience"] = "kafka"
    with Broker(settings) as started:
        with Cluster(str(started.listeners["PLAINTEXT"])) as cluster:
            admin.set_password(cluster, USER, PASSWORD, SCRAM, 4096)
        yield started


# -- Java -----------------------------------------------------------------------------------------

Use = Callable[[Mapping[str, str]], str]
java = [
    pytest.mark.java,
    pytest.mark.skipif(bool(java_missing()), reason=java_missing()),
]


@pytest.fixture(scope="module")
def clients(site: Site) -> Iterator[Callable[[str], JavaClients]]:
    made: dict[str, JavaClients] = {}

    def get(version: str) -> JavaClients:
        if version not in made:
            token = site.place / "token"
            properties = {
                "org.apache.kafka.sasl.oauthbearer.allowed.urls": token.as_uri(),
                "org.apache.kafka.sasl.oauthbearer.allowed.files": str(token),
            }
            made[version] = JavaClients(version, site.place, properties)
        return made[version]

    yield get
    for one in made.values():
        one.close()


def settings_of(
    broker: Broker,
    site: Site,
    mechanism: str,
    protocol: str = "TLSv1.3",
    *,
    version: str = "",
    listener: str = "SASL_SSL",
    password: str = PASSWORD,
) -> dict[str, str]:
    """Of a Java client."""
    options = f'username="{USER}" password="{password}"'
    found = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": mechanism,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(site.trust),
        "ssl.enabled.protocols": protocol,
        "ssl.protocol": protocol,
        "topic": f"java-{mechanism}-{version}-{protocol}",
        "request.timeout.ms": "20000",
        "default.api.timeout.ms": "20000",
    }
    if mechanism == "OAUTHBEARER":
        options = f'unsecuredLoginStringClaim_sub="{USER}"' if version not in TOKENS else ""
        if version in TOKENS:
            (site.place / "token").write_text(site.token())
            found["sasl.login.callback.handler.class"] = TOKENS[version]
            found["sasl.oauthbearer.token.endpoint.url"] = (site.place / "token").as_uri()
        else:
            listener = "UNSIGNED"
    module = f"org.apache.kafka.common.security.{MODULES[mechanism]}"
    found["sasl.jaas.config"] = f"{module} required {options};"
    found["bootstrap.servers"] = str(broker.listeners[listener])
    return found


GRID = [(v, m, p) for v in VERSIONS for m in MECHANISMS for p in PROTOCOLS]
SHOWN = [("4.3.0", "SCRAM-SHA-512", "TLSv1.2"),
         ("4.3.0", "OAUTHBEARER", "TLSv1.3")]  # fmt: skip


class TestJava:
    """Clients of three versions."""

    pytestmark = java

    @pytest.mark.parametrize(("version", "mechanism", "protocol"), some_of(GRID, SHOWN))
    def test_java_writes_and_reads(
        self,
        broker: Broker,
        site: Site,
        clients: Callable[[str], JavaClients],
        version: str,
        mechanism: str,
        protocol: str,
    ) -> None:
        settings = settings_of(broker, site, mechanism, protocol, version=version)
        assert clients(version).use(settings) == "ok"

    @pytest.mark.parametrize(
        ("version", "mechanism"),
        some_of(
            [(v, m) for v in VERSIONS for m in PASSWORDS],
            [("4.3.0", "PLAIN"), ("4.3.0", "SCRAM-SHA-256")],
        ),
    )
    def test_java_tells_that_a_password_is_wrong(
        self,
        broker: Broker,
        site: Site,
        clients: Callable[[str], JavaClients],
        version: str,
        mechanism: str,
    ) -> None:
        settings = settings_of(broker, site, mechanism, version=version, password="wrong")
        told = clients(version).use(settings)
        assert "SaslAuthenticationException" in told
        assert REFUSED[mechanism] in told

    @pytest.mark.parametrize("version", some_of(VERSIONS, ["4.3.0"]))
    def test_java_tells_that_the_authority_is_unknown(
        self, broker: Broker, site: Site, clients: Callable[[str], JavaClients], version: str
    ) -> None:
        settings = settings_of(broker, site, "PLAIN", version=version)
        told = clients(version).use(settings | {"ssl.truststore.location": str(site.stranger)})
        assert "SslAuthenticationException: SSL handshake failed" in told
        assert "PKIX path" in told

    @pytest.mark.parametrize("version", some_of(VERSIONS, ["4.3.0"]))
    def test_java_tells_that_the_host_is_another(
        self, broker: Broker, site: Site, clients: Callable[[str], JavaClients], version: str
    ) -> None:
        settings = settings_of(broker, site, "PLAIN", version=version, listener="ELSEWHERE")
        told = clients(version).use(settings)
        assert f"No subject alternative names matching IP address {HOST}" in told
        unchecked = settings | {"ssl.endpoint.identification.algorithm": ""}
        assert clients(version).use(unchecked) == "ok"

    @pytest.mark.parametrize("version", some_of(TOKENS, ["4.3.0"]))
    def test_java_tells_that_a_token_is_not_valid(
        self, broker: Broker, site: Site, clients: Callable[[str], JavaClients], version: str
    ) -> None:
        settings = settings_of(broker, site, "OAUTHBEARER", version=version)
        (site.place / "token").write_text(site.token(aud="another"))
        told = clients(version).use(settings)
        assert "SaslAuthenticationException" in told
        assert "invalid_token" in told


# -- librdkafka and Python -------------------------------------------------------------------------

LISTENERS = ("SASL_SSL", "OLD")  # with TLS 1.3, and with TLS 1.2 only
PYTHON_GRID = [(m, listener) for m in MECHANISMS for listener in LISTENERS]


class Quiet:
    def log(self, *args: Any) -> None:
        pass


def librdkafka(
    broker: Broker, site: Site, mechanism: str, listener: str = "SASL_SSL", **settings: Any
) -> dict[str, Any]:
    found = {
        "bootstrap.servers": str(broker.listeners[listener]),
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(site.trust),
        "sasl.mechanisms": mechanism,
        "logger": Quiet(),
    }
    if mechanism == "OAUTHBEARER":
        found["oauth_cb"] = lambda config: (site.token(), time.time() + 600)
    else:
        found |= {"sasl.username": USER, "sasl.password": PASSWORD}
    return found | {
        name if name.endswith("_cb") else name.replace("_", "."): value
        for name, value in settings.items()
    }


@pytest.mark.parametrize(("mechanism", "listener"), PYTHON_GRID)
def test_librdkafka_logs_in(broker: Broker, site: Site, mechanism: str, listener: str) -> None:
    client = AdminClient(librdkafka(broker, site, mechanism, listener))
    client.poll(0.1)  # for its token
    assert client.list_topics(timeout=30).brokers


@pytest.mark.parametrize(
    ("listener", "settings", "code", "text"),
    [
        *(
            ("SASL_SSL", {"sasl_mechanisms": m, "sasl_password": "wrong"}, "_AUTHENTICATION", text)
            for m, text in REFUSED.items()
        ),
        ("SASL_SSL", {"ssl_ca_location": "stranger"}, "_SSL", "certificate verify failed"),
        ("ELSEWHERE", {}, "_SSL", "certificate verify failed"),
    ],
)
def test_librdkafka_tells_why_it_fails(
    broker: Broker, site: Site, listener: str, settings: dict[str, str], code: str, text: str
) -> None:
    told: list[Any] = []
    changed = dict(settings)
    if "ssl_ca_location" in changed:
        changed["ssl_ca_location"] = str(site.stranger)
    wanted = librdkafka(broker, site, "PLAIN", listener, error_cb=told.append, **changed)
    client = AdminClient(wanted)

    def is_told() -> bool:
        client.poll(0.1)
        return any(error.code() == getattr(confluent_kafka.KafkaError, code) for error in told)

    wait_until(is_told, 30)
    assert any(text in error.str() for error in told), told


class Tokens:
    """For kafka-python."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def token(self) -> str:
        return self._site.token()

    def extensions(self) -> dict[str, str]:
        return {}


def kafka_python(
    broker: Broker, site: Site, mechanism: str, listener: str = "SASL_SSL", **settings: Any
) -> dict[str, Any]:
    found = {
        "bootstrap_servers": str(broker.listeners[listener]),
        "security_protocol": "SASL_SSL",
        "ssl_cafile": str(site.trust),
        "sasl_mechanism": mechanism,
    }
    if mechanism == "OAUTHBEARER":
        found["sasl_oauth_token_provider"] = token_provider(site)
    else:
        found |= {"sasl_plain_username": USER, "sasl_plain_password": PASSWORD}
    return found | settings


def token_provider(site: Site) -> Any:
    from kafka.net.sasl.oauth import AbstractTokenProvider

    class Provider(Tokens, AbstractTokenProvider):  # type: ignore[misc]
        pass

    return Provider(site)


@pytest.mark.parametrize(("mechanism", "listener"), PYTHON_GRID)
def test_kafka_python_logs_in(broker: Broker, site: Site, mechanism: str, listener: str) -> None:
    producer = kafka.KafkaProducer(**kafka_python(broker, site, mechanism, listener))
    try:
        topic = f"kafka-python-{mechanism}-{listener}"
        assert producer.send(topic, b"x").get(timeout=30).offset == 0
    finally:
        producer.close(timeout=5)


@pytest.mark.parametrize(
    ("listener", "changed", "text"),
    [
        ("SASL_SSL", {"sasl_plain_password": "wrong"}, REFUSED["PLAIN"]),
        ("SASL_SSL", {"ssl_cafile": "stranger"}, "CERTIFICATE_VERIFY_FAILED"),
        ("ELSEWHERE", {}, "IP address mismatch"),
    ],
)
def test_kafka_python_tells_why_it_fails(
    broker: Broker,
    site: Site,
    caplog: pytest.LogCaptureFixture,
    listener: str,
    changed: dict[str, str],
    text: str,
) -> None:
    """In its log."""
    caplog.set_level(logging.INFO)
    settings = kafka_python(broker, site, "PLAIN", listener, **changed)
    if "ssl_cafile" in changed:
        settings["ssl_cafile"] = str(site.stranger)
    with pytest.raises(kafka.errors.KafkaError):
        kafka.KafkaAdminClient(bootstrap_timeout_ms=2000, **settings).list_topics()
    assert text in caplog.text


def aio(broker: Broker, site: Site, mechanism: str, listener: str, **settings: Any) -> Any:
    """A producer of aiokafka, to be made in an event loop."""
    context = ssl.create_default_context(cafile=str(settings.pop("trust", site.trust)))
    found = {
        "bootstrap_servers": str(broker.listeners[listener]),
        "security_protocol": "SASL_SSL",
        "ssl_context": context,
        "sasl_mechanism": mechanism,
        "sasl_plain_username": USER,
        "sasl_plain_password": PASSWORD,
    }
    if mechanism == "OAUTHBEARER":

        class Provider(aiokafka.abc.AbstractTokenProvider):
            async def token(self) -> str:
                return site.token()

        found["sasl_oauth_token_provider"] = Provider()
    return aiokafka.AIOKafkaProducer(**found | settings)


async def send_by_aiokafka(topic: str, make: Callable[[], Any]) -> int:
    producer = make()
    try:
        await producer.start()
        return int((await producer.send_and_wait(topic, b"x")).offset)
    finally:
        await producer.stop()


@pytest.mark.parametrize(("mechanism", "listener"), PYTHON_GRID)
def test_aiokafka_logs_in(broker: Broker, site: Site, mechanism: str, listener: str) -> None:
    topic = f"aiokafka-{mechanism}-{listener}"
    sent = send_by_aiokafka(topic, lambda: aio(broker, site, mechanism, listener))
    assert asyncio.run(sent) == 0


@pytest.mark.parametrize(
    ("listener", "changed", "text"),
    [
        ("SASL_SSL", {"sasl_plain_password": "wrong"}, REFUSED["PLAIN"]),
        ("SASL_SSL", {"trust": "stranger"}, "CERTIFICATE_VERIFY_FAILED"),
        ("ELSEWHERE", {}, "IP address mismatch"),
    ],
)
def test_aiokafka_tells_why_it_fails(
    broker: Broker,
    site: Site,
    caplog: pytest.LogCaptureFixture,
    listener: str,
    changed: dict[str, str],
    text: str,
) -> None:
    """In its log."""
    settings: dict[str, Any] = dict(changed)
    if "trust" in settings:
        settings["trust"] = site.stranger
    with pytest.raises(aiokafka.errors.KafkaError):
        asyncio.run(send_by_aiokafka("t", lambda: aio(broker, site, "PLAIN", listener, **settings)))
    assert text in caplog.text
