"""What ``kafka-configs`` does with each kind of thing."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from kbroker.cli.kafka.running import ToolFailed

if TYPE_CHECKING:
    from kbroker.client.admin.configs import Setting
    from kbroker.client.admin.quotas import Entity
    from kbroker.client.connections.cluster import Cluster

_ITERATIONS = 4096  # of Kafka's tool, and the least that brokers accept
_QUOTAS = {
    "producer_byte_rate",
    "consumer_byte_rate",
    "request_percentage",
    "controller_mutation_rate",
}
_IP_QUOTAS = {"connection_creation_rate"}
_QUOTA_TYPES = {"users": "user", "clients": "client-id", "ips": "ip"}
_SCRAM = re.compile(r"(?:iterations=(-?[0-9]*),)?password=(.*)")
_OWN_SOURCES = {
    "topics": "DYNAMIC_TOPIC_CONFIG",
    "brokers": "DYNAMIC_BROKER_CONFIG",
    "client-metrics": "DYNAMIC_CLIENT_METRICS_CONFIG",
    "groups": "DYNAMIC_GROUP_CONFIG",
}


def _kind(entity_type: str) -> int:
    from kbroker.client.admin.configs import KINDS

    return KINDS[entity_type if entity_type == "client-metrics" else entity_type[:-1]]


# -- settings


def alter_resource(
    cluster: Cluster, entity_type: str, name: str, added: dict[str, str], deleted: list[str]
) -> None:
    from kbroker.client.admin.configs import alter_configs

    if entity_type == "broker-loggers":
        known = {each.name for each in _settings(cluster, entity_type, name)}
        if wrong := [key for key in [*deleted, *added] if key not in known]:
            raise ToolFailed(f"Invalid broker logger(s): {','.join(wrong)}")
    elif deleted:
        # As before 4.0: an error, so that a slip of the pen is noticed.
        own = {each.name for each in _own_settings(cluster, entity_type, name)}
        if wrong := [key for key in deleted if key not in own]:
            raise ToolFailed(f"Invalid config(s): {','.join(wrong)}")
    if twice := [key for key in deleted if key in added]:
        raise ToolFailed(f"both to add and to delete: {','.join(twice)}")
    changes: dict[str, str | None] = {**dict.fromkeys(deleted), **added}
    alter_configs(cluster, _kind(entity_type), name, changes)


def describe_resources(cluster: Cluster, entity_type: str, name: str | None, every: bool) -> None:
    """Print the settings of one, or of all of its kind."""
    if name is not None and not every and not _exists(cluster, entity_type, name):
        print(f"The {entity_type[:-1]} '{name}' doesn't exist and doesn't have dynamic config.")
        return
    for each in [name] if name is not None else _all(cluster, entity_type):
        if each:
            kind = "All" if every else "Dynamic"
            print(f"{kind} configs for {entity_type[:-1]} {each} are:")
        else:
            print(f"Default configs for {entity_type} in the cluster are:")
        _print_settings(cluster, entity_type, each, every)


def _print_settings(cluster: Cluster, entity_type: str, name: str, every: bool) -> None:
    read = _settings if every else _own_settings
    for row in read(cluster, entity_type, name):
        synonyms = ", ".join(
            f"{source}:{key}={_text(value)}" for source, key, value in row.synonyms
        )
        sensitive = "true" if row.sensitive else "false"
        print(f"  {row.name}={_text(row.value)} sensitive={sensitive} synonyms={{{synonyms}}}")


def _text(value: str | None) -> str:
    return "null" if value is None else value


def _settings(cluster: Cluster, entity_type: str, name: str) -> list[Setting]:
    from kbroker.client.admin.configs import describe_configs
    from kbroker.client.errors import RejectedError

    settings = describe_configs(cluster, _kind(entity_type), [name], synonyms=True)[name]
    if isinstance(settings, RejectedError):
        raise settings
    return settings


def _own_settings(cluster: Cluster, entity_type: str, name: str) -> list[Setting]:
    """Those that were set for it. Of loggers all."""
    own = _OWN_SOURCES.get(entity_type)
    if entity_type == "brokers" and not name:
        own = "DYNAMIC_DEFAULT_BROKER_CONFIG"
    settings = _settings(cluster, entity_type, name)
    return settings if own is None else [row for row in settings if row.source == own]


def _exists(cluster: Cluster, entity_type: str, name: str) -> bool:
    if entity_type in ("brokers", "broker-loggers"):
        return name == "" or name in {str(node) for node in cluster.nodes()}
    return name in _all(cluster, entity_type)


def _all(cluster: Cluster, entity_type: str) -> list[str]:
    from kbroker.cli.kafka.java_words import hash_order, string_hash
    from kbroker.client.admin.configs import CLIENT_METRICS, GROUP, list_resources
    from kbroker.client.admin.groups import list_groups
    from kbroker.client.admin.topics import list_topics
    from kbroker.client.errors import RejectedError, UnsupportedByBroker
    from kbroker.errors import ErrorCode

    if entity_type == "topics":
        return hash_order([topic.name for topic in list_topics(cluster)], string_hash)
    if entity_type in ("brokers", "broker-loggers"):
        return [*map(str, cluster.nodes()), ""]
    if entity_type == "client-metrics":
        return list_resources(cluster, CLIENT_METRICS)
    groups = [row.group for row in list_groups(cluster)]
    try:
        return list(dict.fromkeys([*groups, *list_resources(cluster, GROUP)]))
    except UnsupportedByBroker:
        return groups
    except RejectedError as error:
        if error.code != ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            raise
        return groups


# -- quotas and users


def alter_quotas_or_users(
    cluster: Cluster,
    types: list[str],
    names: list[str],
    added: dict[str, str],
    deleted: list[str],
) -> None:
    if types == ["ips"]:
        if wrong := [key for key in [*added, *deleted] if key not in _IP_QUOTAS]:
            raise ToolFailed(
                "Only connection quota configs can be added for 'ips' using --bootstrap-server. "
                f"Unexpected config names: {','.join(wrong)}"
            )
        _alter_quotas(cluster, types, names, added, deleted)
        return
    _check_users(types, names, added, deleted)
    if _QUOTAS & {*added, *deleted}:
        _alter_quotas(cluster, types, names, added, deleted)
    else:
        _alter_user(cluster, names[0], added, deleted)


def _check_users(
    types: list[str], names: list[str], added: dict[str, str], deleted: list[str]
) -> None:
    from kbroker.client.admin.users import MECHANISMS

    only_users = types == ["users"]
    allowed = _QUOTAS | (set(MECHANISMS) if only_users else set())
    what = "quota and SCRAM credential" if only_users else "quota"
    kind = "users" if only_users else "clients"
    for verb, keys in (("added", list(added)), ("deleted", deleted)):
        if wrong := [key for key in keys if key not in allowed]:
            collection = "Set" if verb == "added" else "List"
            raise ToolFailed(
                f"Only {what} configs can be {verb} for '{kind}' using --bootstrap-server. "
                f"Unexpected config names: {collection}({', '.join(wrong)})"
            )
    if set(MECHANISMS) & {*added, *deleted}:
        if "" in names:
            raise ToolFailed(
                "The use of --entity-default or --user-defaults is not allowed with User SCRAM "
                "Credentials using --bootstrap-server."
            )
        if _QUOTAS & {*added, *deleted}:
            raise ToolFailed(
                "Cannot alter both quota and SCRAM credential configs simultaneously for 'users' "
                "using --bootstrap-server."
            )


def _alter_quotas(
    cluster: Cluster,
    types: list[str],
    names: list[str],
    added: dict[str, str],
    deleted: list[str],
) -> None:
    from kbroker.client.admin.quotas import alter_quotas, describe_quotas

    present = next(iter(describe_quotas(cluster, _wanted(types, names)).values()), {})
    if wrong := [key for key in deleted if key not in present]:
        raise ToolFailed(f"Invalid config(s): {','.join(wrong)}")
    changes: dict[str, float | None] = dict.fromkeys(deleted)
    for key, text in added.items():
        try:
            changes[key] = float(text)
        except ValueError:
            raise ToolFailed(f"Cannot parse quota configuration value for {key}: {text}") from None
    entity = tuple(
        (_QUOTA_TYPES[kind], name or None) for kind, name in zip(types, names, strict=True)
    )
    alter_quotas(cluster, entity, changes)


def scram_credentials(added: Mapping[str, str]) -> list[tuple[str, str, int]]:
    """Mechanism, password and iterations of each. Raises ToolFailed."""
    credentials = []
    for mechanism, text in added.items():
        match = _SCRAM.fullmatch(text)
        if match is None:
            raise ToolFailed(f"Invalid credential property {mechanism}={text}")
        iterations = int(match[1]) if match[1] not in (None, "", "-1") else _ITERATIONS
        if iterations < _ITERATIONS:
            raise ToolFailed(
                f"Iterations {iterations} is less than the minimum {_ITERATIONS} required for "
                f"{mechanism}"
            )
        if not match[2]:
            raise ToolFailed(f"the password for {mechanism} is empty: anybody could log in with it")
        credentials.append((mechanism, match[2], iterations))
    return credentials


def _alter_user(cluster: Cluster, user: str, added: dict[str, str], deleted: list[str]) -> None:
    from kbroker.client.admin.users import Credential, delete_credentials, set_password

    credentials = scram_credentials(added)
    if deleted:
        delete_credentials(cluster, [Credential(user, mechanism, 0) for mechanism in deleted])
    for mechanism, password, iterations in credentials:
        set_password(cluster, user, password, [mechanism], iterations)


def _wanted(types: list[str], names: list[str]) -> list[tuple[str, str]]:
    from kbroker.client.admin.quotas import DEFAULT, EVERY

    if len(names) > len(types):
        raise ToolFailed("More entity names specified than entity types")
    entities: list[tuple[str, str]] = []
    for at, kind in enumerate(types):
        name = names[at] if at < len(names) else EVERY
        entities.append((_QUOTA_TYPES[kind], name or DEFAULT))
    return entities


def describe_quotas_and_users(cluster: Cluster, types: list[str], names: list[str]) -> None:
    """Print them; users only where no client ids are meant."""
    _describe_quotas(cluster, types, names)
    if types == ["users"] and "" not in names:
        _describe_users(cluster, names)


def _describe_quotas(cluster: Cluster, types: list[str], names: list[str]) -> None:
    from kbroker.cli.kafka.deserializers import java_real
    from kbroker.cli.kafka.java_words import hash_order, string_hash
    from kbroker.client.admin.quotas import describe_quotas

    quotas = describe_quotas(cluster, _wanted(types, names))
    for entity in hash_order(quotas, _entity_hash, len(quotas)):
        row = quotas[entity]
        parts = [f"{key}={java_real(row[key])}" for key in hash_order(row, string_hash, len(row))]
        print(f"Quota configs for {_entity_text(entity)} are {', '.join(parts)}")


def _entity_hash(entity: Entity) -> int:
    """That of Java's ClientQuotaEntity: of its map, in an array of one."""
    from kbroker.cli.kafka.java_words import string_hash

    total = 0
    for kind, name in entity:
        total += string_hash(kind) ^ (0 if name is None else string_hash(name))
    return (31 + total) & 0xFFFFFFFF


def _entity_text(entity: Entity) -> str:
    titles = {"user": "user-principal", "client-id": "client-id", "ip": "ip"}
    known = dict(entity)
    return ", ".join(
        f"the default {title}" if known[kind] is None else f"{title} '{known[kind]}'"
        for kind, title in titles.items()
        if kind in known
    )


def _describe_users(cluster: Cluster, names: list[str]) -> None:
    from kbroker.client.admin.users import list_credentials
    from kbroker.client.errors import RejectedError
    from kbroker.errors import ErrorCode

    try:
        credentials = list_credentials(cluster, names or None)
    except RejectedError as error:
        if error.code != ErrorCode.RESOURCE_NOT_FOUND:
            raise
        return
    by_user: dict[str, list[str]] = {}
    for each in credentials:
        text = f"{each.mechanism}=iterations={each.iterations}"
        by_user.setdefault(each.user, []).append(text)
    for user, texts in by_user.items():
        print(f"SCRAM credential configs for user-principal '{user}' are {', '.join(texts)}")
