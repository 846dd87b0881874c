"""Settings that would be code: a client with permission to alter configs gets no more than that
(exam S12).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.clients.wire_client import WireClient

from kbroker.config.resource_types import BROKER, TOPIC
from kbroker.errors import ErrorCode
from kbroker.protocol.messages.describe_configs import DescribeConfigsRequest
from kbroker.protocol.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from kbroker.testing import Broker

pytestmark = [pytest.mark.fault, pytest.mark.timeout(120)]

SET = 0
REFUSED = {ErrorCode.INVALID_CONFIG, ErrorCode.INVALID_REQUEST}
JNDI = (
    'com.sun.security.auth.module.JndiLoginModule required user.provider.url="ldap://127.0.0.1/";'
)
LISTENER = "listener.name.plaintext."
# What a broker would load, open or connect to, if it believed it.
LOADED = [
    ("authorizer.class.name", "os.system"),
    ("principal.builder.class", "subprocess.Popen"),
    ("create.topic.policy.class.name", "os.system"),
    ("alter.config.policy.class.name", "os.system"),
    ("ssl.engine.factory.class", "os.system"),
    ("security.providers", "os.system"),
    ("sasl.server.callback.handler.class", "os.system"),
    (f"{LISTENER}plain.sasl.server.callback.handler.class", "os.system"),
    ("sasl.login.class", "os.system"),
    ("sasl.login.callback.handler.class", "os.system"),
    ("sasl.client.callback.handler.class", "os.system"),
    ("replica.selector.class", "os.system"),
    ("client.quota.callback.class", "os.system"),
    ("config.providers", "file"),
    ("config.providers.file.class", "os.system"),
    ("config.providers.file.param.allowed.paths", "/"),
    (f"{LISTENER}config.providers.file.class", "os.system"),
    ("sasl.jaas.config", JNDI),
    (f"{LISTENER}plain.sasl.jaas.config", JNDI),
    ("java.security.auth.login.config", "{file}"),
    ("ssl.truststore.location", "http://127.0.0.1:{port}/trust.pem"),
    ("ssl.keystore.location", "file://{file}"),
    (f"{LISTENER}ssl.keystore.location", "http://127.0.0.1:{port}/key.pem"),
    ("sasl.oauthbearer.jwks.endpoint.url", "http://127.0.0.1:{port}/keys"),
    ("sasl.oauthbearer.jwks.endpoint.url", "file://{file}"),
    ("log.dirs", "{file}"),
    ("runtime.dir", "{file}"),
    ("zookeeper.connect", "127.0.0.1:{port}"),
]
# Of which a Kafka that shares the store would make objects. It takes their names, so the error is
# not that of a setting that cannot change.
NAMES_OF_CODE = ("config.providers",)
# Words that a broker with config providers would replace by what they name.
REFERENCES = ["${{file:{file}:secret}}", "${{env:PATH}}", "${{dir:/etc:hostname}}"]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as started:
        with WireClient((started.host, started.port)) as client:
            client.create_topic("referring")
        yield started


@pytest.fixture
def client(broker: Broker) -> Iterator[WireClient]:
    with WireClient((broker.host, broker.port)) as connected:
        yield connected


@pytest.fixture(scope="module")
def secret(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("secret") / "file.properties"
    file.write_text("secret=Zq7-of-the-machine\n")
    return file


def alter(client: WireClient, kind: int, name: str, key: str, value: str) -> int:
    cls = IncrementalAlterConfigsRequest
    config = cls.AlterableConfig(name=key, config_operation=SET, value=value)
    resource = cls.AlterConfigsResource(resource_type=kind, resource_name=name, configs=[config])
    response = client.call(cls(resources=[resource]), 1)
    return int(response.responses[0].error_code)


def described(client: WireClient, kind: int, name: str) -> dict[str, str | None]:
    cls = DescribeConfigsRequest
    resource = cls.DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=None
    )
    response = client.call(cls(resources=[resource]), 2)
    return {row.name: row.value for row in response.results[0].configs}


@pytest.mark.parametrize("name", ["0", ""], ids=["broker", "cluster-wide"])
def test_setting_that_names_code_or_a_place_is_refused(
    broker: Broker, client: WireClient, secret: Path, name: str
) -> None:
    before = described(client, BROKER, "0")
    accepted = {}
    for key, pattern in LOADED:
        value = pattern.format(file=secret, port=broker.port)
        code = alter(client, BROKER, name, key, value)
        is_code = key.removeprefix(LISTENER).startswith(NAMES_OF_CODE)
        if code not in ({ErrorCode.INVALID_CONFIG} if is_code else REFUSED):
            accepted[key, value] = ErrorCode(code).name

    assert accepted == {}
    assert described(client, BROKER, "0") == before


@pytest.mark.parametrize("value", REFERENCES)
def test_reference_in_a_value_is_not_resolved(client: WireClient, secret: Path, value: str) -> None:
    text = value.format(file=secret)

    accepted = alter(client, TOPIC, "referring", "leader.replication.throttled.replicas", text)
    numeric = alter(client, BROKER, "0", "log.cleaner.threads", text)

    assert accepted in REFUSED
    assert numeric in REFUSED
    assert secret.read_text()[7:-1] not in repr(described(client, TOPIC, "referring"))
