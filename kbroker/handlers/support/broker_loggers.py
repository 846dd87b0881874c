"""The loggers of this broker as resources with configs: a level by the name of each (KIP-412)."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from kbroker import log_levels
from kbroker.config import dynamic
from kbroker.config.describe import ConfigEntry, Synonym
from kbroker.config.key import STRING, Key
from kbroker.config.loader import ConfigSource
from kbroker.errors import ErrorCode, WireError
from kbroker.ipc.calls import ALTER_LOG_LEVELS, AlterLogLevels, SettingValue
from kbroker.log_levels import LEVELS, ROOT

if TYPE_CHECKING:
    from kbroker.handlers.context import RequestContext
    from kbroker.protocol.messages.incremental_alter_configs import IncrementalAlterConfigsRequest


def describe_loggers(
    ctx: RequestContext, names: Collection[str] | None = None
) -> list[ConfigEntry]:
    """The level of each logger, or of those named."""
    ctx.process.log_levels.follow()
    loggers = []
    for name in log_levels.names():
        if names and name not in names:
            continue
        level = log_levels.level_of(name)
        key = Key(name, STRING, "INFO", "LOW", "", one_of=tuple(LEVELS))
        synonyms = [Synonym(name, level, ConfigSource.DYNAMIC_BROKER_LOGGER)]
        entry = ConfigEntry(
            key, level, ConfigSource.DYNAMIC_BROKER_LOGGER, synonyms, read_only=False
        )
        loggers.append(entry)
    return loggers


async def alter_loggers(
    ctx: RequestContext,
    configs: Collection[IncrementalAlterConfigsRequest.AlterableConfig],
    validate_only: bool,
) -> None:
    """Set levels, or take changes back. Raises WireError, and then changes none."""
    changes: list[tuple[str, str | None]] = []
    for config in configs:
        name, level = config.name, config.value
        if not log_levels.exists(name):
            raise WireError(ErrorCode.INVALID_CONFIG, f"Logger {name[:200]} does not exist!")
        if config.config_operation == dynamic.DELETE:
            if name == ROOT:
                text = f"Removing the log level of the {ROOT} logger is not allowed"
                raise WireError(ErrorCode.INVALID_REQUEST, text)
            changes.append((name, None))
        elif config.config_operation != dynamic.SET:
            text = "A log level can only be set or deleted."
            raise WireError(ErrorCode.INVALID_REQUEST, text)
        elif level not in LEVELS:
            raise WireError(
                ErrorCode.INVALID_CONFIG,
                f"Cannot set the log level of {name} to {(level or '')[:50]!a}: it must be "
                f"one of {', '.join(LEVELS)}",
            )
        else:
            changes.append((name, level))
    if len({name for name, _ in changes}) < len(changes):
        raise WireError(ErrorCode.INVALID_REQUEST, "A request may change each logger only once.")
    if changes and not validate_only:
        asked = AlterLogLevels([SettingValue(name, level) for name, level in changes])
        await ctx.controller(ALTER_LOG_LEVELS, asked)
        ctx.process.log_levels.follow()
