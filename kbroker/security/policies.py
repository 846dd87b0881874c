"""Policies: Python classes that may reject new topics and changes of settings, as
``create.topic.policy.class.name`` and ``alter.config.policy.class.name`` name them.

A policy is made with all properties of the broker, in the controller process, and called for each
topic or resource of a request in turn, so it must answer from memory. See docs/extending.md.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, NamedTuple

from kbroker.errors import ConfigError, ErrorCode, WireError
from kbroker.security import plugins

logger = logging.getLogger(__name__)

CREATE_TOPIC = "create.topic.policy.class.name"
ALTER_CONFIG = "alter.config.policy.class.name"
METHODS = ("validate",)


class PolicyViolation(Exception):
    """A policy raises it; the client gets its text."""


class TopicRequest(NamedTuple):
    """A topic to create. num_partitions and replication_factor are None if the request has an
    assignment, which otherwise is None. configs: as requested.
    """

    name: str
    num_partitions: int | None
    replication_factor: int | None
    assignment: dict[int, list[int]] | None
    configs: dict[str, str | None]


class ConfigRequest(NamedTuple):
    """Settings to change. kind: topic, broker or group; the name of all brokers is empty. configs:
    those that the request sets.
    """

    kind: str
    name: str
    configs: dict[str, str]


class Policies:
    """Those of one broker; None: there is none."""

    def __init__(self, create_topic: Any = None, alter_config: Any = None) -> None:
        self.create_topic = create_topic
        self.alter_config = alter_config

    def check_topic(self, request: TopicRequest) -> None:
        """POLICY_VIOLATION."""
        if self.create_topic is not None:
            _validate(CREATE_TOPIC, self.create_topic, request)

    def check_configs(self, request: ConfigRequest) -> None:
        """POLICY_VIOLATION."""
        if self.alter_config is not None:
            _validate(ALTER_CONFIG, self.alter_config, request)


def _validate(setting: str, policy: Any, request: TopicRequest | ConfigRequest) -> None:
    try:
        policy.validate(request)
    except PolicyViolation as violation:
        raise WireError(ErrorCode.POLICY_VIOLATION, str(violation)) from violation
    except Exception as error:
        logger.exception("%s failed, so the request is rejected", setting)
        text = "The policy of this cluster failed; the broker's log says why."
        raise WireError(ErrorCode.UNKNOWN_SERVER_ERROR, text) from error


def check(names: Mapping[str, str | None]) -> None:
    """names: by setting. ConfigError unless each names a class that may be a policy."""
    for setting, name in names.items():
        if name:
            plugins.load(setting, name, METHODS)


def make(names: Mapping[str, str | None], properties: Mapping[str, str]) -> Policies:
    """Make them, with the properties. ConfigError if one refuses."""
    return Policies(*(_made(setting, names[setting], properties) for setting in SETTINGS))


SETTINGS = (CREATE_TOPIC, ALTER_CONFIG)


def _made(setting: str, name: str | None, properties: Mapping[str, str]) -> Any:
    if not name:
        return None
    cls = plugins.load(setting, name, METHODS)
    try:
        return cls(properties)
    except Exception as error:
        raise ConfigError(setting, name, f"a class that can be made: {error!r}") from error
