"""Secrets and stores by AlterConfigs: what is stored, what the client is told, what is logged."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.controller.controllers import resolved

from kbroker.config.dynamic import DELETE, SET, AlterOp
from kbroker.config.loader import BrokerConfig
from kbroker.config.resource_types import BROKER
from kbroker.controller.configs.config_admin import ConfigAdmin
from kbroker.controller.configs.stored_configs import StoredConfigs
from kbroker.errors import ConfigError, ErrorCode, FileConfigError
from kbroker.ipc.calls import (
    AlterConfigs,
    ConfigResult,
    IncrementalAlterConfigs,
    ResourceChanges,
    ResourceSettings,
    SettingValue,
)
from kbroker.ipc.pending import Pending, run
from kbroker.ipc.process_table import Address, ProcessKind
from kbroker.metastore import paths
from kbroker.metastore.embedded import EmbeddedStore
from kbroker.metastore.node_file import NodeFile
from kbroker.metastore.settled import SettledStore
from kbroker.security import certificates
from kbroker.security.password_encoder import PasswordEncoder
from kbroker.security.tls.listeners import TlsListeners

pytestmark = pytest.mark.unit

CALLER = Address(ProcessKind.NETWORK, 0)
OWN = "listener.name.ssl."
PASSWORD, JAAS = f"{OWN}ssl.key.password", "listener.name.sasl_ssl.plain.sasl.jaas.config"
SECRET = {"password.encoder.secret": "the secret"}


# Stores by directory: a broker that is started again has the same.
FILES: dict[Path, NodeFile] = {}


@pytest.fixture(autouse=True)
def stores() -> Iterator[None]:
    yield
    while FILES:
        FILES.popitem()[1].close()


class Admin:
    """The admin of broker 0 on a store of its own. told: what its processes were given."""

    def __init__(self, place: Path, **settings: str) -> None:
        given = {name.replace("_", "."): value for name, value in settings.items()}
        file = FILES.pop(place, None) or NodeFile(str(place))
        FILES[place] = file
        for path in (paths.CONFIG, paths.TOPIC_CONFIGS, paths.BROKER_CONFIGS):
            if file.exists(path) is None:
                file.create(path)
        self.file = file
        store = EmbeddedStore(file)
        self.told: list[dict[str, dict[str, str]]] = []
        user: Any = self
        stored = StoredConfigs(store, SettledStore(store), user, lambda _: Pending(), lambda: 0)
        tls = TlsListeners()
        config = BrokerConfig(given)
        if "listeners" in given:
            tls.load([("SSL", False)], config.of_listener)
        self.sasl_error: ConfigError | None = None
        self.admin = ConfigAdmin(
            stored, user, 0, config, str(place), tls, check_sasl=self._check_sasl
        )
        stored.changed = self.admin.changed
        started = stored.start()
        assert started.done and started.error is None
        assert run_now(self.admin.reencode()) is None

    def _check_sasl(self, config: BrokerConfig) -> None:
        if self.sasl_error is not None:
            raise self.sasl_error

    def set_configs(self, topics: Any = (), brokers: Any = (), *rest: Any) -> Pending[Any]:
        self.told.append(dict(brokers))
        return resolved({})

    def topic(self, name: str) -> str:
        return name

    def alter(self, *ops: AlterOp, broker: str = "0", validate_only: bool = False) -> ConfigResult:
        asked = IncrementalAlterConfigs(
            [ResourceChanges(BROKER, broker, list(ops))], validate_only=validate_only
        )
        (result,) = run_now(run(self.admin.incremental_alter_configs(CALLER, asked)))
        return result

    def replace(self, **settings: str) -> ConfigResult:
        given = [SettingValue(name, value) for name, value in settings.items()]
        asked = AlterConfigs([ResourceSettings(BROKER, "0", given)])
        (result,) = run_now(run(self.admin.alter_configs(CALLER, asked)))
        return result

    def stored(self) -> dict[str, str]:
        path = paths.broker_config("0")
        if self.file.exists(path) is None:
            return {}
        return paths.decode_config(self.file.get(path).data)


def run_now(outcome: Pending[Any]) -> Any:
    assert outcome.done
    if outcome.error is not None:
        raise outcome.error
    return outcome.value


def with_secret(place: Path, **settings: str) -> Admin:
    return Admin(place, password_encoder_secret="the secret", **settings)


def put(name: str, value: str) -> AlterOp:
    return AlterOp(name, SET, value)


def test_secret_is_stored_and_told_to_processes_encrypted_and_in_no_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        admin = with_secret(tmp_path)
        result = admin.alter(put(PASSWORD, "hunter2"), put("log.retention.ms", "7"))

    assert result.error == 0
    stored = admin.stored()
    assert PasswordEncoder(["the secret"]).decode(stored[PASSWORD]) == "hunter2"
    assert stored["log.retention.ms"] == "7"
    assert admin.told[-1] == {"0": stored}
    assert admin.admin.config[PASSWORD] == "hunter2"
    assert PASSWORD in caplog.text
    assert "hunter2" not in caplog.text + repr(admin.told)


def test_change_of_another_setting_leaves_the_encrypted_text_as_it_is(tmp_path: Path) -> None:
    admin = with_secret(tmp_path)
    admin.alter(put(PASSWORD, "hunter2"))
    before = admin.stored()[PASSWORD]

    admin.alter(put("log.retention.ms", "7"))
    same = admin.stored()
    admin.replace(**{PASSWORD: "hunter3"})
    replaced = admin.stored()
    admin.alter(AlterOp(PASSWORD, DELETE, None))

    assert same == {PASSWORD: before, "log.retention.ms": "7"}
    assert PasswordEncoder(["the secret"]).decode(replaced[PASSWORD]) == "hunter3"
    assert admin.stored() == {}


def test_secret_is_rejected_without_the_encoders(tmp_path: Path) -> None:
    admin = Admin(tmp_path)

    results = [
        admin.alter(put(PASSWORD, "hunter2")),
        admin.alter(put(PASSWORD, "hunter2"), validate_only=True),
        admin.replace(**{PASSWORD: "hunter2"}),
        admin.alter(put(JAAS, "hunter2")),
    ]

    for result in results:
        assert result.error == ErrorCode.INVALID_REQUEST
        assert result.message is not None
        assert "Password encoder secret not configured" in result.message
        assert "hunter2" not in result.message
    assert admin.stored() == {}
    assert admin.alter(put("log.retention.ms", "7")).error == 0


def test_secret_for_all_brokers_is_rejected(tmp_path: Path) -> None:
    result = with_secret(tmp_path).alter(put(PASSWORD, "hunter2"), broker="")

    assert result.error == ErrorCode.INVALID_REQUEST
    assert "hunter2" not in str(result.message)


def test_secrets_are_encrypted_with_the_new_one_at_the_start(tmp_path: Path) -> None:
    with_secret(tmp_path).alter(put(PASSWORD, "hunter2"), put("log.retention.ms", "7"))

    rotated = Admin(
        tmp_path, password_encoder_secret="new", password_encoder_old_secret="the secret"
    )

    stored = rotated.stored()
    assert PasswordEncoder(["new"]).decode(stored[PASSWORD]) == "hunter2"
    assert stored["log.retention.ms"] == "7"
    assert Admin(tmp_path, password_encoder_secret="new").admin.config[PASSWORD] == "hunter2"


def test_secret_that_cannot_be_decrypted_stays_until_it_is_set_again(tmp_path: Path) -> None:
    """With the right secret in the file it counts again."""
    with_secret(tmp_path).alter(put(PASSWORD, "hunter2"))
    other = Admin(tmp_path, password_encoder_secret="another")
    before = other.stored()[PASSWORD]

    other.alter(put("log.retention.ms", "7"))

    assert other.stored() == {PASSWORD: before, "log.retention.ms": "7"}
    assert not other.admin.config.is_set(PASSWORD)
    other.alter(put(PASSWORD, "hunter3"))
    assert other.admin.config[PASSWORD] == "hunter3"


def test_login_that_is_no_jaas_is_rejected(tmp_path: Path) -> None:
    admin = with_secret(tmp_path)
    admin.sasl_error = ConfigError(JAAS, "(hidden)", "a login in Kafka's syntax")

    result = admin.alter(put(JAAS, "hunter2"))
    other = admin.alter(put("log.retention.ms", "7"))

    assert result.error == ErrorCode.INVALID_REQUEST
    assert "a login in Kafka's syntax" in str(result.message)
    assert other.error == 0, "it says nothing about logins"
    assert admin.stored() == {"log.retention.ms": "7"}


def test_key_tab_that_cannot_be_used_is_rejected_and_only_the_log_says_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever may alter configs could otherwise find out which files there are."""
    admin = with_secret(tmp_path)
    reason = "a key tab with the keys of k/h: cannot read the key tab /x: No such file or directory"
    admin.sasl_error = FileConfigError(JAAS, "(hidden)", reason)

    result = admin.alter(put(JAAS, "hunter2"))

    assert result.error == ErrorCode.INVALID_REQUEST
    assert "the broker's log has the reason" in str(result.message)
    assert "No such file" not in str(result.message)
    assert "No such file" in caplog.text


# -- files that a client names


def test_client_is_told_whether_a_store_loads_and_no_more(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The controller process opens what the client names: an error must not tell which files there
    are, nor what is in them.
    """
    authority = certificates.create_authority("CA")
    broker = tmp_path / "broker.pem"
    broker.write_bytes(authority.issue("b", hosts=["localhost"], server=True).pem)
    admin = with_secret(
        tmp_path,
        listeners="SSL://127.0.0.1:9093",
        ssl_keystore_type="PEM",
        ssl_keystore_location=str(broker),
    )
    text, other = tmp_path / "secret.txt", tmp_path / "other.pem"
    text.write_text("root:x:0:0\n")
    other.write_bytes(authority.issue("other", hosts=["localhost"], server=True).pem)
    paths_named = [str(text), str(other), str(tmp_path / "missing"), str(tmp_path), "/dev/zero"]

    told = set()
    for named in paths_named:
        result = admin.alter(put(f"{OWN}ssl.keystore.location", named))
        told.add((result.error, result.message))

    (found,) = told
    assert found[0] == ErrorCode.INVALID_REQUEST
    assert "a store that loads" in str(found[1])
    for reason in ("No such file", "one private key", "ssl.allow.dn.changes"):
        assert reason in caplog.text, "the log says why"
    assert admin.stored() == {}
