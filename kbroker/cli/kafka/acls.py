"""``kafka-acls``: add, remove and list ACLs."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from kbroker.cli.kafka.acl_places import AclPlace, OfBrokers, OfZooKeeper
from kbroker.cli.kafka.options import Given, ToolOptionError, WrongUse, flag, valued
from kbroker.cli.kafka.running import (
    BOOTSTRAP,
    Tool,
    ToolFailed,
    ToolRefusal,
    connected,
    pairs,
    properties_of,
)
from kbroker.cli.kafka.zookeeper import ZOOKEEPER_TLS, tls_of

_PATTERNS = ("ANY", "MATCH", "LITERAL", "PREFIXED")
_SPECIFIC = ("LITERAL", "PREFIXED")
_CLUSTER_NAME = "kafka-cluster"
# What may be allowed or denied of each kind of thing, besides all of it.
_SUPPORTED = {
    "TOPIC": "READ WRITE CREATE DESCRIBE DELETE ALTER DESCRIBE_CONFIGS ALTER_CONFIGS".split(),
    "GROUP": "READ DESCRIBE DELETE DESCRIBE_CONFIGS ALTER_CONFIGS".split(),
    "CLUSTER": "CREATE CLUSTER_ACTION DESCRIBE_CONFIGS ALTER_CONFIGS IDEMPOTENT_WRITE ALTER "
    "DESCRIBE".split(),
    "TRANSACTIONAL_ID": "DESCRIBE WRITE TWO_PHASE_COMMIT".split(),
    "DELEGATION_TOKEN": ["DESCRIBE"],
    "USER": ["CREATE_TOKENS", "DESCRIBE_TOKENS"],
}
_RESOURCES = {
    "topic": "TOPIC",
    "group": "GROUP",
    "transactional-id": "TRANSACTIONAL_ID",
    "delegation-token": "DELEGATION_TOKEN",
    "user-principal": "USER",
}

OPTIONS = (
    BOOTSTRAP,
    valued("bootstrap-controller", "controller to connect to", "The same: any broker will do."),
    valued("command-config", "command-config", "A file with settings of a client.", optional=True),
    valued("authorizer", "authorizer", "Has no effect; Kafka 2.x has it, too."),
    valued(
        "authorizer-properties",
        "authorizer-properties",
        "zookeeper.connect=host:port/chroot: the brokers registered there, as before Kafka 3; "
        "may be repeated, also with zookeeper.ssl. settings.",
    ),
    ZOOKEEPER_TLS._replace(
        argument="Authorizer ZooKeeper TLS configuration",
        text="A file with zookeeper.ssl. settings for the connection to ZooKeeper, with or "
        "without authorizer. before their names; others in it are ignored, as is the file "
        "with --bootstrap-server.",
    ),
    valued("topic", "topic", "A topic, * for all; may be repeated."),
    flag("cluster", "The cluster itself."),
    valued("group", "group", "A consumer group, * for all; may be repeated."),
    valued("transactional-id", "transactional-id", "A transactional id, * for all."),
    flag("idempotent", "With --producer, also IdempotentWrite on the cluster."),
    valued("delegation-token", "delegation-token", "A delegation token, * for all."),
    valued(
        "resource-pattern-type",
        "|".join(_PATTERNS),
        "How names are compared: literal or prefixed; with --list and --remove also any, patterns "
        "of either kind with that name, and match, all that concern the name.",
        default="LITERAL",
    ),
    flag("add", "Add ACLs."),
    flag("remove", "Remove ACLs."),
    flag("list", "List ACLs."),
    valued("operation", "", "Read, Write, DescribeConfigs, ...; may be repeated.", default="All"),
    valued("allow-principal", "allow-principal", "To allow, as User:alice, or User:* for all."),
    valued("deny-principal", "deny-principal", "To deny, which counts more."),
    valued("principal", "principal", "With --list, only those of this one.", optional=True),
    valued("allow-host", "allow-host", "The address that is allowed, * for all."),
    valued("deny-host", "deny-host", "The address that is denied, * for all."),
    flag("producer", "What a producer needs: Write, Describe and Create on topics."),
    flag("consumer", "What a consumer needs: Read and Describe on topics, Read on groups."),
    flag("force", "Do not ask."),
    valued("user-principal", "user-principal", "A user whose delegation tokens are meant."),
)


class PrintedResource(NamedTuple):
    kind: str
    name: str
    pattern: str

    def __str__(self) -> str:
        return (
            f"ResourcePattern(resourceType={self.kind}, name={self.name}, "
            f"patternType={self.pattern})"
        )


class PrintedEntry(NamedTuple):
    principal: str
    host: str
    operation: str
    permission: str

    def __str__(self) -> str:
        return (
            f"(principal={self.principal}, host={self.host}, operation={self.operation}, "
            f"permissionType={self.permission})"
        )


def _check(given: Given) -> None:
    _check_servers(given)
    if given.count(("add", "remove", "list")) != 1:
        raise WrongUse("Command must include exactly one action: --list, --add, --remove. ")
    given.exclude(
        "list",
        ("producer", "consumer", "allow-host", "allow-principal", "deny-host", "deny-principal"),
    )
    for role in ("producer", "consumer"):
        given.exclude(role, ("operation", "deny-principal", "deny-host"))
    if "principal" in given and "list" not in given:
        raise WrongUse("The --principal option is only available if --list is set")
    if "producer" in given and "topic" not in given:
        raise WrongUse("With --producer you must specify a --topic")
    if "idempotent" in given and "producer" not in given:
        raise WrongUse("The --idempotent option is only available if --producer is set")
    alone = "producer" not in given
    if "consumer" in given and (
        given.count(("topic", "group")) < 2
        or (alone and given.count(("cluster", "transactional-id")))
    ):
        raise WrongUse(
            "With --consumer you must specify a --topic and a --group and no --cluster or "
            "--transactional-id option should be specified."
        )
    if "bootstrap-controller" in given:
        raise ToolFailed("there are no controllers to connect to: use --bootstrap-server")


def _check_servers(given: Given) -> None:
    """The older forms have the words of Kafka 2.7."""
    servers = given.count(("bootstrap-server", "bootstrap-controller"))
    if servers == 2:
        raise WrongUse("Only one of --bootstrap-server or --bootstrap-controller must be specified")
    if servers:
        if "authorizer" in given:
            raise WrongUse("Only one of --bootstrap-server or --authorizer must be specified")
        if "authorizer-properties" in given:
            raise WrongUse(
                "The --authorizer-properties option can only be used with --authorizer option"
            )
    elif given.count(("authorizer", ZOOKEEPER_TLS.name)):
        given.require("authorizer-properties")
    elif "authorizer-properties" not in given:
        raise WrongUse("One of --bootstrap-server or --bootstrap-controller must be specified")


def _run(given: Given) -> int:
    _check(given)
    from kbroker.cli.kafka.java_words import java_text
    from kbroker.client.errors import ClientError

    try:
        with _place(given) as place:
            if "add" in given:
                _add(given, place)
            elif "remove" in given:
                _remove(given, place)
            else:
                _list(given, place)
    except ClientError as error:
        print(f"Error while executing ACL command: {java_text(error)}")
        return 1
    except (ToolRefusal, ToolOptionError) as error:
        print(f"Error while executing ACL command: {error}")
        return 1
    except ToolFailed as error:
        if not isinstance(error.__cause__, OSError):
            raise
        print(f"Error while executing ACL command: {error}")
        return 1
    return 0


@contextmanager
def _place(given: Given) -> Iterator[AclPlace]:
    """With the brokers, or in ZooKeeper. Raises ToolFailed, ClientError."""
    if "authorizer-properties" not in given:
        with connected(given.one("bootstrap-server"), given.one("command-config")) as cluster:
            yield OfBrokers(cluster)
        return
    from kbroker.cli.kafka.zookeeper_writing import opened

    settings = pairs(given.all("authorizer-properties"))
    connect = settings.get("authorizer.zookeeper.url") or settings.get("zookeeper.connect")
    if not connect:
        raise ToolFailed("--authorizer-properties: give zookeeper.connect=host:port/chroot")
    where = "--authorizer-properties"
    if ZOOKEEPER_TLS.name in given:
        where = given.one(ZOOKEEPER_TLS.name)
        settings |= properties_of(where)
    prefix = "authorizer."
    settings |= {
        name.removeprefix(prefix): text
        for name, text in settings.items()
        if name.startswith(prefix)
    }
    with opened(connect, tls_of(settings, where)) as nodes:
        yield OfZooKeeper(nodes)


# -- what is meant


def _pattern(given: Given) -> str:
    text = str(given.one("resource-pattern-type"))
    if text.upper() not in _PATTERNS:
        raise ToolRefusal(f"Cannot parse argument '{text}' of option resource-pattern-type")
    return text.upper()


def resources(given: Given, required: bool = True) -> list[PrintedResource]:
    """Raises WrongUse if there are none."""
    pattern = _pattern(given)
    rows = [
        PrintedResource(kind, name.strip(), pattern)
        for option, kind in _RESOURCES.items()
        for name in given.all(option)
    ]
    if pattern == "LITERAL" and given.count(("cluster", "idempotent")):
        rows.append(PrintedResource("CLUSTER", _CLUSTER_NAME, "LITERAL"))
    if not rows and required:
        raise WrongUse(
            "You must provide at least one resource: --topic <topic> or --cluster or --group "
            "<group> or --delegation-token <Delegation Token ID>"
        )
    return sorted(set(rows))


def _principals(given: Given, option: str) -> list[str]:
    principals = []
    for text in given.all(option):
        kind, colon, name = text.strip().partition(":")
        if not colon or not kind:
            raise ToolRefusal(
                f"expected a string in format principalType:principalName but got {text.strip()}"
            )
        principals.append(f"{kind}:{name}")
    return principals


def _entries(given: Given, operations: Iterable[str]) -> set[PrintedEntry]:
    entries = set()
    for permission, word in (("ALLOW", "allow"), ("DENY", "deny")):
        hosts = [host.strip() for host in given.all(f"{word}-host")] or ["*"]
        for principal in _principals(given, f"{word}-principal"):
            for operation in operations:
                entries |= {PrintedEntry(principal, host, operation, permission) for host in hosts}
    return entries


def _operation(text: str) -> str:
    """``DescribeConfigs`` and ``DESCRIBE_CONFIGS`` are the same."""
    word = text.strip().replace("_", "").upper()
    known = {name.replace("_", ""): name for names in _SUPPORTED.values() for name in names}
    return {**known, "ALL": "ALL"}.get(word, "UNKNOWN")


def acls_by_resource(given: Given) -> dict[PrintedResource, set[PrintedEntry]]:
    """What the options say; no entries: all. Raises WrongUse."""
    acls: dict[PrintedResource, set[PrintedEntry]] = {}
    if not given.count(("producer", "consumer")):
        operations = {_operation(text) for text in given.all("operation")}
        acls = {resource: _entries(given, operations) for resource in resources(given)}
    roles = {
        "producer": {
            "TOPIC": ("WRITE", "DESCRIBE", "CREATE"),
            "TRANSACTIONAL_ID": ("WRITE", "DESCRIBE"),
        },
        "consumer": {"TOPIC": ("READ", "DESCRIBE"), "GROUP": ("READ",)},
    }
    for role, rights in roles.items():
        for resource in resources(given) if role in given else ():
            if resource.kind in rights:
                entries = _entries(given, rights[resource.kind])
                acls.setdefault(resource, set()).update(entries)
    if "idempotent" in given:
        cluster = PrintedResource("CLUSTER", _CLUSTER_NAME, "LITERAL")
        acls.setdefault(cluster, set()).update(_entries(given, ["IDEMPOTENT_WRITE"]))
    for resource, entries in acls.items():
        allowed = [*_SUPPORTED[resource.kind], "ALL"]
        if any(entry.operation not in allowed for entry in entries):
            raise WrongUse(
                f"ResourceType {resource.kind} only supports operations [{', '.join(allowed)}]"
            )
    return dict(sorted(acls.items()))


# -- what is done


def _listed(entries: Iterable[PrintedEntry]) -> str:
    return "\n".join(f"\t{entry}" for entry in sorted(entries))


def _present(
    place: AclPlace, wanted: Iterable[PrintedResource] | None
) -> dict[PrintedResource, set[PrintedEntry]]:
    """The ACLs that match; of all resources without ``wanted``."""
    from kbroker.client.admin.acls import Acl

    filters = [Acl()] if wanted is None else [Acl(*resource) for resource in wanted]
    acls: dict[PrintedResource, set[PrintedEntry]] = {}
    for acl_filter in filters:
        for acl in place.matching(acl_filter):
            resource = PrintedResource(acl.resource_type, acl.name or "", acl.pattern)
            entry = PrintedEntry(acl.principal or "", acl.host or "", acl.operation, acl.permission)
            acls.setdefault(resource, set()).add(entry)
    return dict(sorted(acls.items()))


def _add(given: Given, place: AclPlace) -> None:
    from kbroker.client.admin.acls import Acl

    if _pattern(given) not in _SPECIFIC:
        raise WrongUse(
            f"A '--resource-pattern-type' value of '{_pattern(given)}' is not valid when adding "
            "acls."
        )
    wanted = acls_by_resource(given)
    if not all(wanted.values()):
        raise WrongUse(
            "You must specify one of: --allow-principal, --deny-principal when trying to add ACLs."
        )
    for resource, entries in wanted.items():
        present = _present(place, [resource]).get(resource, set())
        for entry in sorted(entries & present):
            print(f"Acl (pattern={resource}, entry={entry}) already exists.")
        if new := sorted(entries - present):
            print(f"Adding ACLs for resource `{resource}`: \n {_listed(new)}\n")
            place.create([Acl(*resource, *entry) for entry in new])


def _remove(given: Given, place: AclPlace) -> None:
    from kbroker.client.admin.acls import Acl

    for resource, entries in acls_by_resource(given).items():
        if entries:
            question = (
                f"Are you sure you want to remove ACLs: \n {_listed(entries)}\n from resource "
                f"filter `{resource}`? (y/n)"
            )
        else:
            question = (
                f"Are you sure you want to delete all ACLs for resource filter `{resource}`? (y/n)"
            )
        if _agreed(given, question):
            filters = [Acl(*resource, *entry) for entry in sorted(entries)] or [Acl(*resource)]
            place.delete(filters)


def _agreed(given: Given, question: str) -> bool:
    if "force" in given:
        return True
    print(question, flush=True)
    return sys.stdin.readline().strip().lower() == "y"


def _list(given: Given, place: AclPlace) -> None:
    principals = _principals(given, "principal")
    acls = _present(place, resources(given, required=False) or None)
    wanted: list[str | None] = [*sorted(set(principals))] or [None]
    for principal in wanted:
        if principal is not None:
            print(f"ACLs for principal `{principal}`")
        for resource, entries in acls.items():
            own = [each for each in entries if principal in (None, each.principal)]
            if own:
                print(f"Current ACLs for resource `{resource}`:\n{_listed(own)}\n")


TOOL = Tool("This tool helps to manage acls on kafka.", OPTIONS, _run, usage_errors=True)
