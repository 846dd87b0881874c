"""Settings that clients change, in the controller."""

from __future__ import annotations

from types import NoneType
from typing import NamedTuple

from kbroker.config.dynamic import AlterOp
from kbroker.ipc.calls.acls import CreateAcls, DeleteAcls
from kbroker.ipc.calls.base import CONTROLLER, NOBODY, SettingValue
from kbroker.ipc.calls.credentials import AlterScram
from kbroker.ipc.calls.topics import CreatePartitions, CreateTopics, DeleteTopics
from kbroker.ipc.documents import Document
from kbroker.ipc.operation import CallOperation


class ResourceSettings(Document):
    """type: as in ``config.resource_types``. name: of a broker its id, or "" for all brokers."""

    type: int
    name: str
    configs: list[SettingValue]


class AlterConfigs(Document):
    resources: list[ResourceSettings]
    validate_only: bool = False
    asked_by: str = NOBODY


class ResourceChanges(Document):
    """Like ``ResourceSettings``, with only what changes."""

    type: int
    name: str
    configs: list[AlterOp]


class IncrementalAlterConfigs(Document):
    resources: list[ResourceChanges]
    validate_only: bool = False
    asked_by: str = NOBODY


class EntityChange(NamedTuple):
    """What changes of the configs of an entity (``metastore.entities``). None removes a config."""

    entity: str
    configs: list[SettingValue]


class AlterQuotas(Document):
    changes: list[EntityChange]
    asked_by: str = NOBODY


class AlterLogLevels(Document):
    """levels: logger and level; None takes a change back."""

    levels: list[SettingValue]
    asked_by: str = NOBODY


# Changes requested by clients and authorized; ``asked_by`` is the principal.
OfClient = (
    CreateTopics
    | CreatePartitions
    | DeleteTopics
    | AlterConfigs
    | IncrementalAlterConfigs
    | AlterQuotas
    | AlterLogLevels
    | AlterScram
    | CreateAcls
    | DeleteAcls
)


class ConfigResult(Document):
    error: int = 0
    message: str | None = None


# The result has an entry for each resource, in order.
ALTER_CONFIGS = CallOperation("alter_configs", AlterConfigs, list[ConfigResult], (CONTROLLER,))
INCREMENTAL_ALTER_CONFIGS = CallOperation(
    "incremental_alter_configs", IncrementalAlterConfigs, list[ConfigResult], (CONTROLLER,)
)
# All of them. Every process follows within a moment.
ALTER_LOG_LEVELS = CallOperation("alter_log_levels", AlterLogLevels, NoneType, (CONTROLLER,))
# All of them, or an error. The reply is sent when every process of the broker has the new quotas.
ALTER_QUOTAS = CallOperation("alter_quotas", AlterQuotas, NoneType, (CONTROLLER,))
