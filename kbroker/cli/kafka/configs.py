"""``kafka-configs``: settings of topics, brokers, groups and others, quotas and SCRAM users."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

from kbroker.cli.kafka.options import Given, ToolOptionError, WrongUse, flag, valued
from kbroker.cli.kafka.running import BOOTSTRAP, Tool, ToolFailed, connected, properties_of
from kbroker.cli.kafka.zookeeper import ZOOKEEPER, ZOOKEEPER_TLS, tls_given

if TYPE_CHECKING:
    from kbroker.client.connections.cluster import Cluster

_TYPES = (
    "topics",
    "clients",
    "users",
    "brokers",
    "ips",
    "client-metrics",
    "groups",
    "broker-loggers",
)
# Options that name one entity, and those for the default of a type, in Kafka's order.
_FLAGS = {
    "topic": "topics",
    "client": "clients",
    "user": "users",
    "broker": "brokers",
    "broker-logger": "broker-loggers",
    "ip": "ips",
    "client-metrics": "client-metrics",
    "group": "groups",
}
_DEFAULTS = {
    "client-defaults": "clients",
    "user-defaults": "users",
    "broker-defaults": "brokers",
    "ip-defaults": "ips",
}
# Commas and equals signs outside of brackets.
_OUTSIDE = r"(?=[^\]]*(?:\[|$))"

OPTIONS = (
    BOOTSTRAP,
    valued("bootstrap-controller", "controller to connect to", "The same: any broker will do."),
    ZOOKEEPER,
    ZOOKEEPER_TLS,
    valued("command-config", "command config property file", "A file with settings of a client."),
    flag("alter", "Change settings."),
    flag("describe", "Print settings."),
    flag("all", "With --describe, also those that were not set."),
    valued("entity-type", "", f"What kind of thing: {', '.join(_TYPES)}."),
    valued("entity-name", "", "Its name: of a topic, a client id, the id of a broker, ..."),
    flag("entity-default", "The default of clients, users, brokers or ips."),
    valued(
        "add-config",
        "",
        "Settings, k1=v1,k2=[v1,v2],k3=v3; for users also SCRAM-SHA-256 or -512 with "
        "[password=secret] or [iterations=8192,password=secret], and as for clients "
        "producer_byte_rate, consumer_byte_rate, "
        "request_percentage and controller_mutation_rate; for ips connection_creation_rate.",
    ),
    valued("add-config-file", "", "A properties file with settings to add."),
    valued("delete-config", "", "Names of settings to unset, k1,k2.", separator=","),
    *(
        valued(name, "", f"The same as --entity-type {kind} --entity-name.")
        for name, kind in _FLAGS.items()
    ),
    *(
        flag(name, f"The same as --entity-type {kind} --entity-default.")
        for name, kind in _DEFAULTS.items()
    ),
    flag("force", "Has no effect; 2.x has it, too."),
)


def entity_types(given: Given) -> list[str]:
    """In Kafka's order."""
    named = {**_FLAGS, **_DEFAULTS}
    return [*given.all("entity-type"), *(kind for name, kind in named.items() if name in given)]


def entity_names(given: Given) -> list[str]:
    """The default is the empty name."""
    names = iter(given.all("entity-name"))
    entities = [
        next(names) if name == "entity-name" else ""
        for name in given.order
        if name in ("entity-name", "entity-default")
    ]
    entities += [given.one(name) for name in _FLAGS if name in given]
    return entities + ["" for name in _DEFAULTS if name in given]


# -- what may be given


def _check(given: Given) -> None:
    if given.count(("alter", "describe")) != 1:
        raise WrongUse("Command must include exactly one action: --describe, --alter")
    given.exclude("describe", ("alter", "add-config", "delete-config"))
    types, names = entity_types(given), entity_names(given)
    twice = [kind for at, kind in enumerate(types) if kind in types[:at]]
    if twice:
        raise ToolFailed(f"Duplicate entity type(s) specified: {','.join(twice)}")
    if not given.count(("bootstrap-server", "bootstrap-controller", "zookeeper")):
        if ZOOKEEPER_TLS.name in given:
            raise ToolFailed(
                "One of the required --bootstrap-server or --zookeeper arguments must be specified"
            )
        raise ToolFailed("Either --bootstrap-server or --bootstrap-controller must be specified.")
    _check_types(given, types)
    if not types:
        raise ToolFailed("At least one entity type must be specified")
    if len(types) > 1 and set(types) != {"users", "clients"}:
        raise ToolFailed("Only 'users' and 'clients' entity types may be specified together")
    if given.count(("entity-name", "entity-type", "entity-default")) and given.count(
        (*_FLAGS, *_DEFAULTS)
    ):
        raise ToolFailed(
            "--entity-{type,name,default} should not be used in conjunction with specific entity "
            "flags"
        )
    if given.count(("bootstrap-server", "bootstrap-controller")) == 2:
        raise ToolFailed(
            "Only one of --bootstrap-server or --bootstrap-controller can be specified"
        )
    if given.count(("bootstrap-server", "zookeeper")) == 2:
        raise ToolFailed("Only one of --bootstrap-server or --zookeeper must be specified")
    if {"brokers", "broker-loggers"} & set(types):
        for name in names:
            if name and not re.fullmatch(r"[+-]?\d{1,9}", name):
                raise ToolFailed(
                    f"The entity name for {types[0]} must be a valid integer broker id, but it is: "
                    f"{name}"
                )
    _check_action(given, types, names)


def _check_types(given: Given, types: list[str]) -> None:
    known, where = ", ".join(_TYPES), "--bootstrap-server or --bootstrap-controller"
    if "zookeeper" in given:
        from kbroker.cli.kafka import zookeeper_configs

        known, where = ",".join(zookeeper_configs.TYPES), "--zookeeper"
    for kind in types:
        if kind not in re.split(", ?", known):
            article = "the" if where == "--zookeeper" else "a"
            raise ToolFailed(
                f"Invalid entity type {kind}, the entity type must be one of {known} with "
                f"{article} {where} argument"
            )


def _check_action(given: Given, types: list[str], names: list[str]) -> None:
    named = any(names)
    with_default = {"users", "clients", "brokers", "ips"} & set(types)
    listed = ",".join(types)
    if "describe" in given:
        if not with_default and "entity-default" in given:
            raise ToolFailed(f"--entity-default must not be specified with --describe of {listed}")
        if "broker-loggers" in types and not named:
            raise ToolFailed(f"An entity name must be specified with --describe of {listed}")
        return
    if with_default and not names:
        raise ToolFailed(
            "An entity-name or default entity must be specified with --alter of users, clients, "
            "brokers or ips"
        )
    if not with_default and not named:
        raise ToolFailed(f"An entity name must be specified with --alter of {listed}")
    if given.count(("add-config", "add-config-file")) == 2:
        raise ToolFailed("Only one of --add-config or --add-config-file must be specified")
    if not given.count(("add-config", "add-config-file", "delete-config")):
        raise ToolFailed(
            "At least one of --add-config, --add-config-file, or --delete-config must be specified "
            "with --alter"
        )
    if len(types) != len(names):
        raise ToolFailed("An entity name must be specified for every entity type")


def added(given: Given) -> dict[str, str]:
    """Settings to set. Raises ToolFailed."""
    settings = {}
    if "add-config-file" in given:
        settings.update(properties_of(given.one("add-config-file")))
    if "add-config" in given:
        parts = re.split("," + _OUTSIDE, given.one("add-config"))
        while len(parts) > 1 and not parts[-1]:
            parts.pop()
        for part in parts:
            pair = re.split(r"\s*=\s*" + _OUTSIDE, part)
            if len(pair) != 2:
                raise ToolFailed(
                    "requirement failed: Invalid entity config: all configs to be added must be in "
                    'the format "key=val" or  "key=[val1,val2]" to group values which contain '
                    "commas."
                )
            settings[pair[0].strip()] = re.sub(r"[\[\]]", "", pair[1]).strip()
    for key in settings:
        if not re.fullmatch(r"[$a-zA-Z0-9._-]*", key):
            raise ToolFailed(f"Invalid character found for config key: {key}")
    return settings


# -- what is done


def _run(given: Given) -> int:
    _check(given)
    from kbroker.cli.kafka.java_words import java_text
    from kbroker.client.errors import ClientError

    if "bootstrap-controller" in given:
        raise ToolFailed("there are no controllers to connect to: use --bootstrap-server")
    try:
        if "zookeeper" in given:
            _run_without_brokers(given)
            return 0
        with connected(given.one("bootstrap-server"), given.one("command-config")) as cluster:
            if "alter" in given:
                _alter(given, cluster)
            else:
                _describe(given, cluster)
    except ClientError as error:
        _say_what_was_done(given)
        raise ToolFailed(java_text(error)) from error
    except ToolOptionError as error:
        raise ToolFailed(str(error)) from error
    except ToolFailed as error:
        if isinstance(error.__cause__, OSError):
            _say_what_was_done(given)
        raise
    return 0


def _run_without_brokers(given: Given) -> None:
    """What is to be written or printed is in ZooKeeper. Raises ToolFailed, ClientError."""
    from kbroker.cli.kafka import zookeeper_configs
    from kbroker.cli.kafka.zookeeper_writing import opened

    print(zookeeper_configs.WARNING)
    wanted = zookeeper_configs.named(entity_types(given), entity_names(given))
    with opened(given.one("zookeeper"), tls_given(given)) as nodes:
        if "alter" in given:
            deleted = [name.strip() for name in given.all("delete-config")]
            zookeeper_configs.alter(nodes, wanted, added(given), deleted)
        else:
            zookeeper_configs.describe(nodes, wanted)


def _say_what_was_done(given: Given) -> None:
    """Before an error that is not one of the command line."""
    sys.stdout.flush()
    words = " ".join(given.words)
    print(f"Error while executing config command with args '{words}'", file=sys.stderr)


def _alter(given: Given, cluster: Cluster) -> None:
    from kbroker.cli.kafka.config_entities import alter_quotas_or_users, alter_resource

    types, names = entity_types(given), entity_names(given)
    deleted = [name.strip() for name in given.all("delete-config")]
    if types[0] in ("users", "clients", "ips"):
        alter_quotas_or_users(cluster, types, names, added(given), deleted)
    else:
        alter_resource(cluster, types[0], names[0], added(given), deleted)
    if names[0]:
        print(f"Completed updating config for {types[0][:-1]} {names[0]}.")
    else:
        print(f"Completed updating default config for {types[0]} in the cluster.")


def _describe(given: Given, cluster: Cluster) -> None:
    from kbroker.cli.kafka.config_entities import describe_quotas_and_users, describe_resources

    types, names = entity_types(given), entity_names(given)
    if types[0] in ("users", "clients", "ips"):
        describe_quotas_and_users(cluster, types, names)
    else:
        describe_resources(cluster, types[0], names[0] if names else None, "all" in given)


TOOL = Tool(
    "This tool helps to manipulate and describe entity config for a topic, client, user, broker, "
    "ip, client-metrics or group",
    OPTIONS,
    _run,
)
