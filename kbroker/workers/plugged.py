"""The authorizer and the policies that the configuration names."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from kbroker.config.loader import BrokerConfig
from kbroker.errors import ConfigError
from kbroker.properties import read_properties
from kbroker.security import acl_authorizer, custom_authorizer, plugins, policies
from kbroker.security.access import AccessTable
from kbroker.security.acl_authorizer import AclAuthorizer
from kbroker.security.acl_index import AclIndex
from kbroker.security.authorizer import AllowAll, Authorizer
from kbroker.security.custom_authorizer import CustomAuthorizer
from kbroker.security.policies import Policies

logger = logging.getLogger(__name__)

REPORTERS = "metric.reporters"
REPORTER_METHODS = ("init", "metric_change")
# Kafka's default; what it would show is at /jmx.
JMX_REPORTER = "org.apache.kafka.common.metrics.JmxReporter"


def check(config: BrokerConfig) -> None:
    """ConfigError for a class that cannot be loaded. Before the fork: all processes import it."""
    name = config["authorizer.class.name"]
    if name and not uses_acls(config):
        custom_authorizer.check(name)
    policies.check(_policy_names(config))
    if reporter_names(config) and config["metrics.port"] < 0:
        text = "no class while metrics.port is -1: there is no process to run it"
        raise ConfigError(REPORTERS, ",".join(config[REPORTERS]), text)


def reporter_names(config: BrokerConfig) -> list[str]:
    """The classes of ``metric.reporters`` that are Python's. A file that Kafka has used may name
    others, which have no effect. Raises ConfigError.
    """
    names = []
    for name in config[REPORTERS]:
        try:
            plugins.load(REPORTERS, name, REPORTER_METHODS)
        except ConfigError as error:
            if not isinstance(error.__cause__, ModuleNotFoundError):
                raise
            if name != JMX_REPORTER:
                logger.warning("%s: %s has no effect, as there is no such module", REPORTERS, name)
            continue
        names.append(name)
    return names


def properties(
    config: BrokerConfig, path: str | None, overrides: Mapping[str, str]
) -> dict[str, str]:
    """All properties, for classes of others; read only if there are any."""
    names = (
        config["authorizer.class.name"], *_policy_names(config).values(), *config[REPORTERS]
    )  # fmt: skip
    if path is None or not any(names):
        return dict(overrides)
    return dict(read_properties(path)) | dict(overrides)


def uses_acls(config: BrokerConfig) -> bool:
    """Whether the authorizer decides by the ACLs of the metadata store."""
    return config["authorizer.class.name"] in acl_authorizer.CLASS_NAMES


def make_authorizer(config: BrokerConfig, given: Mapping[str, str]) -> Authorizer:
    """given: what ``properties`` returned. ConfigError."""
    name = config["authorizer.class.name"]
    if not name:
        return AllowAll()
    if not uses_acls(config):
        return custom_authorizer.make(name, given)
    return AclAuthorizer(
        AclIndex(),
        acl_authorizer.super_users(config["super.users"]),
        allows_if_none=config["allow.everyone.if.no.acl.found"],
    )


class Authorization:
    """The authorizer of one process, as the configuration and the image say.

    acls: those that it decides by; None: it knows none.
    """

    def __init__(self, config: BrokerConfig, given: Mapping[str, str]) -> None:
        """given: what ``properties`` returned. ConfigError."""
        self._authorizer = make_authorizer(config, given)
        self.accesses = AccessTable(self._authorizer)
        self.acls: AclIndex | None = None
        if isinstance(self._authorizer, AclAuthorizer):
            self.acls = self._authorizer.index

    def take(self, delta: Mapping[str, Any]) -> None:
        """Take a snapshot or a delta of the image."""
        if self.acls is not None and self.acls.take(delta):
            self.accesses.follow(self._authorizer)

    def tick(self) -> None:
        """Ask an authorizer of others whether its verdicts have changed."""
        if isinstance(self._authorizer, CustomAuthorizer) and self._authorizer.changed():
            self.accesses.follow(self._authorizer)


def make_policies(config: BrokerConfig, given: Mapping[str, str]) -> Policies:
    """given: what ``properties`` returned. ConfigError."""
    return policies.make(_policy_names(config), given)


def _policy_names(config: BrokerConfig) -> dict[str, str | None]:
    return {setting: config[setting] for setting in policies.SETTINGS}
