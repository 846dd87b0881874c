"""The cost of config requests for the controller; their effect is tested with its process."""

from __future__ import annotations

from typing import Any

import pytest
from support.controller.controllers import resolved
from support.running.counting_text import CountingText
from support.security.secured_peers import SecuredPeers

from kbroker.config.dynamic import SET, AlterOp
from kbroker.config.loader import BrokerConfig
from kbroker.config.resource_types import BROKER, GROUP, TOPIC
from kbroker.controller.configs.config_admin import ConfigAdmin
from kbroker.controller.configs.stored_configs import StoredConfigs
from kbroker.errors import ErrorCode
from kbroker.ipc.calls import (
    AlterConfigs,
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
from kbroker.metastore.store import SessionCallback, SessionState, Store
from kbroker.peers.security import PeerSecurity
from kbroker.security.tls.listeners import TlsListeners

pytestmark = pytest.mark.unit

CALLER = Address(ProcessKind.NETWORK, 0)
ALICE = "User:alice"


class Unused:
    """A store that must not be read, and no processes that use configs."""

    is_shared = False

    def watch_session(self, callback: SessionCallback) -> None:
        callback(SessionState.CONNECTED)

    def set_configs(self, *configs: Any) -> Pending[dict[str, int]]:
        return resolved({})

    def topic(self, name: str) -> str:
        return name


def admin_of(
    runtime_dir: Any, store: Store | None = None, config: BrokerConfig | None = None, **more: Any
) -> ConfigAdmin:
    """The admin of broker 0, for all topics."""
    unused: Any = Unused()
    used: Store = store or unused
    stored = StoredConfigs(used, SettledStore(used), unused, lambda _: Pending(), lambda: 0)
    config = config or BrokerConfig({})
    return ConfigAdmin(stored, unused, 0, config, str(runtime_dir), TlsListeners(), **more)


@pytest.mark.parametrize("operation", ["alter_configs", "incremental_alter_configs"])
def test_resources_of_a_request_are_not_compared_with_each_other(
    tmp_path: Any, operation: str
) -> None:
    """10,000 groups blocked the controller for two seconds, with quadratic growth."""
    admin = admin_of(tmp_path)
    names = [CountingText(f"g{number}") for number in range(300)]
    names += [CountingText("g0")]
    incremental = operation.startswith("incremental")
    asked: Any = IncrementalAlterConfigs if incremental else AlterConfigs
    resource: Any = ResourceChanges if incremental else ResourceSettings
    resources = [resource(GROUP, name, []) for name in names]
    CountingText.compared = 0

    outcome = run(getattr(admin, operation)(CALLER, asked(resources, validate_only=True)))

    codes = [result.error for result in outcome.value]
    assert [n for n, code in enumerate(codes) if code == ErrorCode.INVALID_REQUEST] == [0, 300]
    assert CountingText.compared <= 10 * len(names)


def test_file_that_cannot_be_noted_for_the_next_controller_is_not_used(tmp_path: Any) -> None:
    """With a full runtime directory, a SIGHUP killed the controller."""
    missing = str(tmp_path / "no" / "directory")
    admin = admin_of(missing)
    before = admin.config
    path = tmp_path / "server.properties"
    path.write_text("log.retention.ms=1234567\n")

    assert admin.reload(str(path), {}).value is False

    assert admin.config is before


def test_settings_with_which_no_broker_could_be_reached_are_rejected(tmp_path: Any) -> None:
    config = SecuredPeers(tmp_path).config("SSL")
    security = {"SSL": PeerSecurity(config, "SSL")}
    admin = admin_of(tmp_path, config=config, peer_security=security)
    name = "ssl.endpoint.identification.algorithm"
    asked = [
        IncrementalAlterConfigs([ResourceChanges(BROKER, "0", [AlterOp(name, SET, text)])], True)
        for text in ("ldaps", "")
    ]

    bad, good = (run(admin.incremental_alter_configs(CALLER, each)).value[0] for each in asked)

    assert bad.error != 0 and "https or empty" in bad.message
    assert good.error == 0


@pytest.mark.parametrize("operation", ["alter_configs", "incremental_alter_configs"])
def test_changed_setting_without_effect_is_told_in_the_log_once(
    tmp_path: Any, operation: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    file = NodeFile(str(tmp_path))
    for path in (paths.CONFIG, paths.TOPIC_CONFIGS, paths.BROKER_CONFIGS):
        file.create(path)
    admin = admin_of(tmp_path, EmbeddedStore(file))

    def change(kind: int, name: str, *settings: tuple[str, str]) -> None:
        incremental = operation.startswith("incremental")
        asked: Any
        if incremental:
            ops = [AlterOp(key, SET, text) for key, text in settings]
            asked = IncrementalAlterConfigs([ResourceChanges(kind, name, ops)], asked_by=ALICE)
        else:
            given = [SettingValue(*setting) for setting in settings]
            asked = AlterConfigs([ResourceSettings(kind, name, given)], asked_by=ALICE)
        (result,) = run(getattr(admin, operation)(CALLER, asked)).value
        assert result.error == 0, result

    change(BROKER, "", ("background.threads", "7"), ("log.cleaner.threads", "2"))
    change(TOPIC, "t", ("remote.log.copy.disable", "true"), ("retention.ms", "5"))
    change(TOPIC, "t", ("remote.log.copy.disable", "true"), ("retention.ms", "6"))

    told = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert [text.partition(" has no effect")[0] for text in told] == [
        "broker default: background.threads=7",
        "topic t: remote.log.copy.disable=true",
    ]
    named = [r.getMessage() for r in caplog.records if r.levelname == "INFO"]
    assert named == [
        "settings of broker default: background.threads, log.cleaner.threads for User:alice",
        *["settings of topic t: remote.log.copy.disable, retention.ms for User:alice"] * 2,
    ]
    file.close()
