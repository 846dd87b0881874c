"""Passwords and keys are in no log, response, metric, title, file or core file (exam S11)."""

from __future__ import annotations

import os
import resource
import signal
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest
from cryptography.hazmat.primitives import serialization
from support.brokers.all_processes import all_pids
from support.clients.wire_client import WireClient
from support.running.grids import some_of
from support.security.secured import JAAS, LoginRefused, SecuredClient, Site, address_of

from kbroker.client.admin import users as admin
from kbroker.client.connections.cluster import Cluster
from kbroker.config.resource_types import BROKER, BROKER_LOGGER
from kbroker.errors import EXIT_BAD_CONFIG
from kbroker.protocol.message import Message
from kbroker.protocol.messages.describe_configs import DescribeConfigsRequest
from kbroker.protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
)
from kbroker.protocol.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from kbroker.testing import Broker, BrokerFailed, wait_until

pytestmark = [pytest.mark.fault, pytest.mark.timeout(300)]

# Found nowhere by chance.
PLAIN, SCRAM, GUESS = "Zq7-of-plain", "Zq7-of-scram", "Zq7-guessed-by-somebody"
KEY, SET = "Zq7-of-the-key", "Zq7-set-by-request"
SECRETS = (PLAIN, SCRAM, GUESS, KEY, SET)
CORE_PATTERN = Path("/proc/sys/kernel/core_pattern")


class Started(NamedTuple):
    """A broker whose secrets are in its file, as they should be."""

    broker: Broker
    site: Site
    config: Path
    private_key: str


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Started]:
    site = Site(tmp_path)
    private_key = site.store.read_text().split("-----")[2].strip()
    encrypt(site.store)
    protocols = ("PLAINTEXT", "SASL_SSL")
    settings = site.settings(*protocols, mechanisms="PLAIN,SCRAM-SHA-256")
    settings |= {
        "listener.name.sasl_ssl.plain.sasl.jaas.config": JAAS.format(f'user_alice="{PLAIN}"'),
        "ssl.key.password": KEY,
    }
    config = tmp_path / "server.properties"
    secret = {name for name in settings if "password" in name or "jaas" in name}
    config.write_text("".join(f"{name}={settings.pop(name)}\n" for name in sorted(secret)))
    command = [sys.executable, "-m", "kbroker.cli.start", "-c", str(config)]
    with Broker(settings, command=command) as broker:
        with Cluster(f"{broker.host}:{broker.port}") as cluster:
            admin.set_password(cluster, "bob", SCRAM, ["SCRAM-SHA-256"], 4096)
        yield Started(broker, site, config, private_key)


def encrypt(store: Path) -> None:
    """Encrypt the private key of a PEM file."""
    pem = store.read_bytes()
    key = serialization.load_pem_private_key(pem, None).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(KEY.encode()),
    )
    store.write_bytes(key + pem[pem.index(b"-----BEGIN CERTIFICATE") :])


def use(started: Started) -> None:
    """Logins that work, and logins that do not."""
    address = address_of(started.broker, "SASL_SSL")
    context = started.site.client_context()
    for user, password, mechanism in (
        ("alice", PLAIN, "PLAIN"),
        ("bob", SCRAM, "SCRAM-SHA-256"),
    ):
        with SecuredClient(
            address, context=context, user=user, password=password, mechanism=mechanism
        ) as client:
            assert client.metadata().brokers
        with pytest.raises(LoginRefused) as caught:
            SecuredClient(address, context=context, user=user, password=GUESS, mechanism=mechanism)
        assert GUESS not in str(caught.value)


def answers(started: Started) -> Iterator[bytes]:
    """Responses in which configs and users are shown, or a secret was sent."""
    cls = DescribeConfigsRequest
    resources = [
        cls.DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None)
        for kind, name in ((BROKER, "0"), (BROKER, ""), (BROKER_LOGGER, "0"))
    ]
    change = IncrementalAlterConfigsRequest
    names = ("ssl.key.password", "listener.name.sasl_ssl.plain.sasl.jaas.config", "log.dirs")
    altered = change.AlterConfigsResource(
        resource_type=BROKER,
        resource_name="0",
        configs=[change.AlterableConfig(name=name, value=SET) for name in names],
    )
    requests: list[tuple[Message, int]] = [
        (cls(resources=resources, include_synonyms=True, include_documentation=True), 4),
        (DescribeUserScramCredentialsRequest(users=None), 0),
        (change(resources=[altered]), 1),
    ]
    with WireClient((started.broker.host, started.broker.port)) as client:
        for request, version in requests:
            client.send(request, version)
            yield client.receive()


def shown(started: Started) -> Iterator[tuple[str, bytes]]:
    """What others can see of the broker, by a name."""
    broker = started.broker
    for number, answer in enumerate(answers(started)):
        yield f"response {number}", answer.replace(SET.encode(), b"") if number == 2 else answer
    for page in ("metrics", "health", "waiting"):
        with urllib.request.urlopen(f"{broker.metrics_url}/{page}", timeout=30) as response:
            yield page, response.read()
    for title, pid in [("supervisor", broker.pid), *broker.pids.items()]:
        yield f"title of {title}", Path(f"/proc/{pid}/cmdline").read_bytes()
    yield "log", broker.log_text.encode()
    for path in broker.directory.rglob("*"):
        with suppress(OSError):
            if path.is_file():
                yield str(path), path.read_bytes()


def found(started: Started, *, places: Iterator[tuple[str, bytes]]) -> list[tuple[str, str]]:
    secrets = (*SECRETS, started.private_key)
    return [(where, one) for where, data in places for one in secrets if one.encode() in data]


def test_secrets_are_shown_nowhere(started: Started) -> None:
    """Also not after a process was killed, and has been started again."""
    use(started)
    broker = started.broker
    for kind in ("network", "controller", "io"):
        pid = broker.kill(kind, 0)
        wait_until(lambda k=kind, p=pid: broker.pids.get(f"{k}-0", p) != p, 30, "it is back")
    wait_until(lambda: works(started), 30, "logins work again")

    assert found(started, places=shown(started)) == []
    assert "Zq7" not in broker.log_text


def works(started: Started) -> bool:
    try:
        use(started)
    except OSError:
        return False
    return True


def test_core_file_of_a_process_has_no_memory(started: Started) -> None:
    use(started)
    for pid in all_pids(started.broker).values():
        assert int(Path(f"/proc/{pid}/coredump_filter").read_text(), 16) == 0
    pattern = CORE_PATTERN.read_text().strip()
    if pattern.startswith(("|", "/")) or "%" in pattern:
        return  # the kernel hands it to a program of this machine
    pid = started.broker.pids["network-0"]
    place = Path(os.readlink(f"/proc/{pid}/cwd"))
    before = set(place.glob("core*"))
    unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    resource.prlimit(pid, resource.RLIMIT_CORE, unlimited)
    os.kill(pid, signal.SIGABRT)
    wait_until(lambda: started.broker.pids.get("network-0", pid) != pid, 30, "it is back")
    cores = set(place.glob("core*")) - before
    try:
        assert found(started, places=((str(c), c.read_bytes()) for c in cores)) == []
    finally:
        for core in cores:
            core.unlink()


@pytest.mark.parametrize(
    "line",
    some_of(
        lines := [
            f"listener.name.sasl_ssl.plain.sasl.jaas.config={PLAIN}",
            f"ssl.keystore.key={KEY}",
            f"ssl.key.password={KEY}\nssl.key.passwort={KEY}\nssl.keystore.type=JKS",
            f'listener.name.sasl_ssl.plain.sasl.jaas.config={PLAIN} required password="{PLAIN}',
        ],
        lines[2:],
    ),
)
def test_refused_start_does_not_show_what_is_wrong_with_a_secret(tmp_path: Path, line: str) -> None:
    site = Site(tmp_path)
    settings = site.settings("SASL_SSL") | {"inter.broker.listener.name": "SASL_SSL"}
    if "keystore.key" in line:
        del settings["ssl.keystore.location"]
    for name in [part.partition("=")[0] for part in line.splitlines()]:
        settings.pop(name, None)
    config = tmp_path / "server.properties"
    config.write_text(line + "\n")
    command = [sys.executable, "-m", "kbroker.cli.start", "-c", str(config)]
    broker = Broker(settings, command=command)
    try:
        with pytest.raises(BrokerFailed) as caught:
            broker.start()
    finally:
        broker.close()
    assert f"exited with {EXIT_BAD_CONFIG}" in str(caught.value)
    assert not [secret for secret in SECRETS if secret in str(caught.value)]
