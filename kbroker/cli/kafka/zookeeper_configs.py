"""``kafka-configs --zookeeper``: writes into ZooKeeper itself, with the words of Kafka 2.7.

That is how the brokers' SCRAM user comes to be before the first broker runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from kbroker.cli.kafka.config_entities import scram_credentials
from kbroker.cli.kafka.running import ToolFailed
from kbroker.cli.kafka.zookeeper_writing import change, names_below, read, shown

if TYPE_CHECKING:
    from kbroker.client.zookeeper.znodes import Znodes

# In 2.7's order; addresses are of 2.8.
TYPES = ("topics", "clients", "users", "brokers", "ips")
WARNING = """\
Warning: --zookeeper is deprecated and will be removed in a future version of Kafka.
Use --bootstrap-server instead to specify a broker to connect to."""
_WORDS = {"users": "user-principal", "clients": "client-id", "topics": "topic", "ips": "ip"}
_ENCODER = "password.encoder."
# A broker takes these from ZooKeeper also while it runs.
_THROTTLES = {
    "leader.replication.throttled.rate",
    "follower.replication.throttled.rate",
    "replica.alter.log.dirs.io.max.bytes.per.second",
}

Named = dict[str, str | None]  # by type: "" for the default, None for all


def named(types: list[str], names: list[str]) -> Named:
    """Users before their clients. Raises ToolFailed."""
    if len(names) > len(types):
        raise ToolFailed("More entity names specified than entity types")
    entities: Named = dict.fromkeys(types)
    entities.update(zip(types, names, strict=False))
    return {kind: entities[kind] for kind in sorted(entities, key=lambda kind: kind == "clients")}


def alter(nodes: Znodes, wanted: Named, added: Mapping[str, str], deleted: Iterable[str]) -> None:
    """Raises ToolFailed, ZnodeError, UnreachableError."""
    from kbroker.metastore import paths

    path, gone = _path(wanted), list(deleted)
    settings = _checked(nodes, wanted, dict(added))

    def changed(before: bytes | None) -> bytes:
        configs = _decoded(path, before)
        if wrong := [name for name in gone if name not in configs]:
            raise ToolFailed(f"Invalid config(s): {','.join(wrong)}")
        after = {**configs, **settings}
        return paths.encode_config({k: text for k, text in after.items() if k not in gone})

    change(nodes, path, changed, (paths.CONFIG_CHANGE, paths.encode_config_change(path)))
    print(f"Completed updating config for entity: {_text(wanted)}.")


def describe(nodes: Znodes, wanted: Named) -> None:
    """Print them. Raises ToolFailed, ZnodeError, UnreachableError."""
    is_all_users = wanted == {"users": None}
    for one in _existing(nodes, wanted):
        path = _path(one)
        present = read(nodes, path)
        configs = _decoded(path, None if present is None else present[0])
        # A node may be there for the user's clients alone.
        if configs or not is_all_users:
            print(f"Configs for {_text(one)} are {shown(configs)}")


# -- names


def _path(wanted: Named) -> str:
    from kbroker.metastore import entities, paths

    [kind, *_] = wanted
    name = wanted[kind] or ""
    if kind == "topics":
        return paths.topic_config(name)
    if kind == "brokers":
        return paths.broker_config(name or "default")
    parts = (f"{each}/{entities.sanitized(own or None)}" for each, own in wanted.items())
    return entities.entity_config("/".join(parts))


def _text(wanted: Named) -> str:
    parts = []
    for kind, name in wanted.items():
        word = _WORDS.get(kind, kind)
        parts.append(f"{word} '{name}'" if name else f"default {word}")
    return ", ".join(parts)


def _existing(nodes: Znodes, wanted: Named) -> Iterator[Named]:
    """Those that have a node, where all of a type are meant."""
    from urllib.parse import unquote_plus

    from kbroker.metastore import paths

    def below(parent: str, name: str | None) -> list[str]:
        if name is not None:
            return [name]
        children = names_below(nodes, parent)
        return ["" if each == paths.DEFAULT_ENTITY else unquote_plus(each) for each in children]

    [kind, *of_user] = wanted
    for name in below(f"{paths.CONFIG}/{kind}", wanted[kind]):
        if not of_user:
            yield {kind: name}
            continue
        parent = f"{_path({kind: name})}/{of_user[0]}"
        for client in below(parent, wanted[of_user[0]]):
            yield {kind: name, of_user[0]: client}


def _decoded(path: str, data: bytes | None) -> dict[str, str]:
    from kbroker.metastore import paths

    try:
        return paths.decode_config(data or b"")
    except (ValueError, KeyError) as error:
        raise ToolFailed(
            f"the configs in {path} cannot be read ({error!r}): correct the node"
        ) from None


# -- what may be set


def _checked(nodes: Znodes, wanted: Named, added: dict[str, str]) -> dict[str, str]:
    """The settings as they are stored. Raises ToolFailed."""
    from kbroker.errors import ConfigError

    [kind, *_] = wanted
    try:
        if kind == "topics":
            _check_topic(nodes, wanted[kind] or "", added)
            return added
        if kind == "brokers":
            return _of_broker(nodes, wanted[kind] or "", added)
    except ConfigError as error:
        raise ToolFailed(str(error)) from error
    return _of_client(wanted, added)


def _check_topic(nodes: Znodes, name: str, added: dict[str, str]) -> None:
    from kbroker.config.loader import load
    from kbroker.config.topic_config import validate_topic
    from kbroker.metastore import paths

    if added and read(nodes, paths.topic(name)) is None:
        raise ToolFailed(f"Topic '{name}' does not exist.")
    validate_topic(added, load(None, {})[0])


def _of_client(wanted: Named, added: dict[str, str]) -> dict[str, str]:
    """Quotas; of a user also credentials."""
    from kbroker.client.admin.users import MECHANISMS
    from kbroker.config.quota_keys import CLIENT_QUOTAS, IP_QUOTAS

    is_user = list(wanted) == ["users"] and wanted["users"]
    scram = {key: text for key, text in added.items() if is_user and key in MECHANISMS}
    quotas = IP_QUOTAS if "ips" in wanted else CLIENT_QUOTAS
    if wrong := [key for key in added if key not in scram and key not in quotas]:
        raise ToolFailed(
            f"requirement failed: Unknown Dynamic Configuration: Set({', '.join(wrong)})."
        )
    stored = {}
    for key in added.keys() - scram.keys():
        quota = quotas[key]
        try:
            value = quota.parse(added[key])
        except ValueError as error:
            raise ToolFailed(str(error)) from None
        if problem := quota.problem(value):
            raise ToolFailed(problem)
        stored[key] = quota.text(value)
    if scram:
        from kbroker.security.sasl.scram import from_password, to_text

        for mechanism, password, iterations in scram_credentials(scram):
            stored[mechanism] = to_text(from_password(mechanism, password, iterations))
    return stored


def _of_broker(nodes: Znodes, broker: str, added: dict[str, str]) -> dict[str, str]:
    """Passwords encrypted by the ``password.encoder.`` settings beside them, which are not kept."""
    from kbroker.cluster.stored_passwords import SECRET, encoder_of, is_password
    from kbroker.config.dynamic import SET, AlterOp, alter_broker
    from kbroker.config.loader import load
    from kbroker.metastore import paths

    encoding = {key: added.pop(key) for key in list(added) if key.startswith(_ENCODER)}
    if others := sorted(added.keys() - _THROTTLES):
        said = f"--bootstrap-server option must be specified to update broker configs {others}"
        if broker and read(nodes, paths.broker(int(broker))) is not None:
            raise ToolFailed(f"requirement failed: {said} when broker {broker} is running.")
        if not broker and names_below(nodes, paths.BROKER_IDS):
            raise ToolFailed(
                f"requirement failed: {said} for default cluster if any broker is running."
            )
    config = load(None, encoding)[0]
    ops = [AlterOp(key, SET, text) for key, text in added.items()]
    alter_broker({}, ops, config, per_broker=bool(broker))
    secrets = [key for key in added if is_password(key)]
    encoder = encoder_of(config)
    if secrets and encoder is None:
        raise ToolFailed(
            f"requirement failed: {SECRET} must be specified to update {', '.join(secrets)}. It is "
            "that of the brokers, and is not stored in ZooKeeper."
        )
    for key in secrets:
        assert encoder is not None
        added[key] = encoder.encode(added[key])
    return added
