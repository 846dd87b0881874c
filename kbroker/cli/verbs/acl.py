"""``kbroker acl``: who may do what. The options are those of ``kafka-acls``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kbroker.cli.arguments import Action, CommandFailed, Usage, add_format, agreed, nearest, printed
from kbroker.cli.connecting import add_connection, connected

if TYPE_CHECKING:
    from kbroker.client.admin.acls import Acl

CLUSTER_NAME = "kafka-cluster"
ANY_HOST = "*"
_ACCESS = ("READ", "WRITE", "CREATE", "DELETE", "ALTER", "DESCRIBE")
_CONFIGS = ("DESCRIBE_CONFIGS", "ALTER_CONFIGS")
# Type -> the operations that a resource of it has, as Kafka's tool checks them.
OPERATIONS = {
    "TOPIC": (*_ACCESS, *_CONFIGS, "ALL"),
    "GROUP": ("READ", "DESCRIBE", "DELETE", *_CONFIGS, "ALL"),
    "CLUSTER": ("CREATE", "CLUSTER_ACTION", *_CONFIGS, "IDEMPOTENT_WRITE", "ALTER", "DESCRIBE",
                "ALL"),
    "TRANSACTIONAL_ID": ("DESCRIBE", "WRITE", "TWO_PHASE_COMMIT", "ALL"),
    "DELEGATION_TOKEN": ("DESCRIBE", "ALL"),
    "USER": ("CREATE_TOKENS", "DESCRIBE_TOKENS", "ALL"),
}  # fmt: skip
_ALL_OPERATIONS = tuple(dict.fromkeys(word for words in OPERATIONS.values() for word in words))
_COLUMNS = {
    "resource_type": "RESOURCE",
    "name": "NAME",
    "pattern": "PATTERN",
    "principal": "PRINCIPAL",
    "host": "HOST",
    "operation": "OPERATION",
    "permission": "PERMISSION",
}

_ADD_EPILOG = """\
examples:
  kbroker acl add --allow-principal User:alice --producer --topic orders
  kbroker acl add --allow-principal User:bob --consumer --topic orders --group billing
  kbroker acl add --allow-principal User:bob --operation Read --topic logs- \\
      --resource-pattern-type prefixed
  kbroker acl add --deny-principal User:eve --operation All --topic '*'

--producer is Write, Describe and Create on the topics, and Write and Describe on transactional ids;
--consumer is Read and Describe on the topics and Read on the groups."""


def _add_resources(
    parser: argparse.ArgumentParser, patterns: Sequence[str], default: str = "literal"
) -> None:
    for option, text in (
        ("--topic", "a topic"),
        ("--group", "a consumer group"),
        ("--transactional-id", "a transactional id"),
        ("--delegation-token", "a delegation token"),
        ("--user-principal", "a user whose delegation tokens are meant"),
    ):
        parser.add_argument(
            option,
            action="append",
            default=[],
            metavar="NAME",
            help=f"{text}, * for all; may be repeated",
        )
    parser.add_argument("--cluster", action="store_true", help="the cluster itself")
    parser.add_argument(
        "--resource-pattern-type",
        type=str.lower,
        choices=patterns,
        default=default,
        help="how names are compared (%(default)s)",
    )


def _add_rules(parser: argparse.ArgumentParser) -> None:
    for kind in ("allow", "deny"):
        parser.add_argument(
            f"--{kind}-principal",
            action="append",
            default=[],
            metavar="TYPE:NAME",
            help=f"to {kind}, such as User:alice, or User:* for all; may be repeated",
        )
        parser.add_argument(
            f"--{kind}-host",
            action="append",
            default=[],
            metavar="ADDRESS",
            help=f"the addresses it is for, with --{kind}-principal; may be repeated (*)",
        )
    parser.add_argument(
        "--operation",
        action="append",
        default=[],
        type=_operation,
        metavar="OPERATION",
        help="Read, Write, DescribeConfigs, ...; may be repeated (All)",
    )
    parser.add_argument(
        "--producer", action="store_true", help="what a producer needs, with --topic"
    )
    parser.add_argument(
        "--consumer", action="store_true", help="what a consumer needs, with --topic and --group"
    )
    parser.add_argument(
        "--idempotent",
        action="store_true",
        help="also IdempotentWrite on the cluster, which brokers before 2.8 want of producers",
    )


def _operation(text: str) -> str:
    """Raises ArgumentTypeError: ``DescribeConfigs``, as Kafka's tool has it, or with dashes."""
    known = {word.replace("_", ""): word for word in _ALL_OPERATIONS}
    plain = text.upper().replace("_", "").replace("-", "")
    if plain in known:
        return known[plain]
    meant = nearest(plain, known)
    instead = f"; did you mean {_shown_operation(known[meant])}?" if meant else ""
    raise argparse.ArgumentTypeError(f"no operation {text!r}{instead}")


def _shown_operation(word: str) -> str:
    return word.title().replace("_", "")


def _resources(options: argparse.Namespace) -> dict[str, list[str]]:
    """Type -> names, of those that are given."""
    given = {
        "TOPIC": options.topic,
        "GROUP": options.group,
        "CLUSTER": [CLUSTER_NAME] if options.cluster else [],
        "TRANSACTIONAL_ID": options.transactional_id,
        "DELEGATION_TOKEN": options.delegation_token,
        "USER": options.user_principal,
    }
    if any(not name for names in given.values() for name in names):
        raise Usage("the name of a resource is empty; * stands for all")
    return {kind: list(dict.fromkeys(names)) for kind, names in given.items() if names}


def _rules(options: argparse.Namespace) -> list[tuple[str, str, str]]:
    """(principal, host, permission) of all that are given."""
    rules = []
    for permission, principals, hosts in (
        ("ALLOW", options.allow_principal, options.allow_host),
        ("DENY", options.deny_principal, options.deny_host),
    ):
        word = permission.lower()
        if hosts and not principals:
            raise Usage(f"--{word}-host is for --{word}-principal, which is missing")
        for principal in principals:
            kind, colon, name = principal.partition(":")
            if not kind or not colon or not name:
                raise Usage(
                    f"--{word}-principal {principal!r}: write TYPE:NAME, such as User:{principal}"
                )
        rules += [
            (principal, host, permission)
            for principal in principals
            for host in hosts or [ANY_HOST]
        ]
    return rules


def _wanted(options: argparse.Namespace) -> list[tuple[str, str, str]]:
    """(type, name, operation) of all that are given. Raises Usage."""
    resources = _resources(options)
    if options.producer or options.consumer:
        return _bundles(options, resources)
    if options.idempotent:
        raise Usage("--idempotent is for --producer, which is missing")
    if not resources:
        raise Usage("name a resource: --topic, --group, --cluster, --transactional-id, ...")
    wanted = []
    for kind, names in resources.items():
        for operation in options.operation or ["ALL"]:
            if operation not in OPERATIONS[kind]:
                offered = ", ".join(map(_shown_operation, OPERATIONS[kind]))
                what = kind.lower().replace("_", " ")
                raise Usage(
                    f"--operation {_shown_operation(operation)} is none of a {what}: {offered}"
                )
            wanted += [(kind, name, operation) for name in names]
    return wanted


def _bundles(
    options: argparse.Namespace, resources: dict[str, list[str]]
) -> list[tuple[str, str, str]]:
    """What producers and consumers need."""
    if options.operation or options.deny_principal:
        raise Usage("--producer and --consumer allow, and leave out --operation")
    topics, groups = resources.get("TOPIC"), resources.get("GROUP")
    if not topics:
        raise Usage(f"{'--producer' if options.producer else '--consumer'} needs --topic")
    if options.consumer and not groups:
        raise Usage("--consumer needs --group")
    if groups and not options.consumer:
        raise Usage("--group is for --consumer, which is missing")
    meant = {"TOPIC", "GROUP", "TRANSACTIONAL_ID"} if options.producer else {"TOPIC", "GROUP"}
    if extra := resources.keys() - meant:
        option = sorted(extra)[0].lower().replace("_", "-")
        raise Usage(
            f"--{option} does not go with --{'producer' if options.producer else 'consumer'}"
        )
    wanted = []
    if options.producer:
        wanted += [("TOPIC", name, word) for name in topics for word in _PRODUCER]
        ids = resources.get("TRANSACTIONAL_ID", [])
        wanted += [("TRANSACTIONAL_ID", name, word) for name in ids for word in _TRANSACTIONS]
    if options.idempotent:
        wanted.append(("CLUSTER", CLUSTER_NAME, "IDEMPOTENT_WRITE"))
    if options.consumer:
        wanted += [("TOPIC", name, word) for name in topics for word in ("READ", "DESCRIBE")]
        wanted += [("GROUP", name, "READ") for name in groups or ()]
    return list(dict.fromkeys(wanted))


_PRODUCER = ("WRITE", "DESCRIBE", "CREATE")
_TRANSACTIONS = ("WRITE", "DESCRIBE")


def _pattern(options: argparse.Namespace, kind: str) -> str:
    """There is only one cluster, whose name is literal."""
    return "LITERAL" if kind == "CLUSTER" else str(options.resource_pattern_type).upper()


# -- add


def _describe_add(parser: argparse.ArgumentParser) -> None:
    _add_resources(parser, ("literal", "prefixed"))
    _add_rules(parser)
    add_format(parser)
    add_connection(parser)


def _add(options: argparse.Namespace) -> None:
    rules = _rules(options)
    wanted = _wanted(options)
    if not rules:
        raise Usage("who? Give --allow-principal or --deny-principal")
    with connected(options) as cluster:
        from kbroker.client.admin import acls as admin

        acls = [
            admin.Acl(kind, name, _pattern(options, kind), principal, host, operation, permission)
            for kind, name, operation in wanted
            for principal, host, permission in rules
        ]
        admin.create_acls(cluster, acls)
    _print_acls(options, acls)


# -- list


def _describe_list(parser: argparse.ArgumentParser) -> None:
    _add_resources(parser, ("any", "match", "literal", "prefixed"), "any")
    parser.add_argument(
        "--principal", metavar="TYPE:NAME", help="only those of this one, such as User:alice"
    )
    add_format(parser)
    add_connection(parser)


def _list(options: argparse.Namespace) -> None:
    resources = _resources(options)
    with connected(options) as cluster:
        from kbroker.client.admin import acls as admin

        listed: set[Acl] = set()
        for acl_filter in _filters(options, resources, options.principal):
            listed.update(admin.list_acls(cluster, acl_filter))
    _print_acls(options, sorted(listed))


def _filters(
    options: argparse.Namespace, resources: dict[str, list[str]], principal: str | None = None
) -> list[Acl]:
    """One for each resource, or one for all of them."""
    from kbroker.client.admin import acls as admin

    pattern = str(options.resource_pattern_type).upper()
    if not resources:
        return [admin.Acl(pattern=pattern, principal=principal)]
    return [
        admin.Acl(kind, name, _pattern(options, kind), principal)
        for kind, names in resources.items()
        for name in names
    ]


# -- delete


def _describe_delete(parser: argparse.ArgumentParser) -> None:
    _add_resources(parser, ("any", "match", "literal", "prefixed"))
    _add_rules(parser)
    parser.add_argument("--force", action="store_true", help="do not ask")
    add_format(parser)
    add_connection(parser)


def _delete(options: argparse.Namespace) -> None:
    resources, rules = _resources(options), _rules(options)
    exact = bool(rules)
    wanted = _wanted(options) if exact or options.producer or options.consumer else []
    if not exact and (wanted or options.operation):
        raise Usage("whose? Give --allow-principal or --deny-principal")
    if not exact and not resources:
        raise Usage("name a resource: --topic, --group, --cluster, --transactional-id, ...")
    if not options.force and not sys.stdin.isatty():
        raise Usage("add --force to delete without being asked")
    with connected(options) as cluster:
        from kbroker.client.admin import acls as admin

        filters = _filters(options, resources)
        if exact:
            filters = [
                admin.Acl(
                    kind, name, _pattern(options, kind), principal, host, operation, permission
                )
                for kind, name, operation in wanted
                for principal, host, permission in rules
            ]
        if not options.force:
            _ask({acl for each in filters for acl in admin.list_acls(cluster, each)})
        deleted = admin.delete_acls(cluster, filters)
    if not deleted:
        raise CommandFailed("no ACL matches; nothing was deleted")
    _print_acls(options, deleted)


def _ask(meant: set[Acl]) -> None:
    """Raises CommandFailed unless the user agrees."""
    from kbroker.client.admin.acls import acl_text

    if not meant:
        raise CommandFailed("no ACL matches; nothing was deleted")
    if not agreed(map(acl_text, sorted(meant)), "Delete?"):
        raise CommandFailed("nothing was deleted")


def _print_acls(options: argparse.Namespace, acls: Sequence[Acl]) -> None:
    rows: list[dict[str, Any]] = [acl._asdict() for acl in acls]
    printed(options.output, _COLUMNS, rows, "no ACLs")


ACTIONS = {
    "add": Action("add ACLs", _describe_add, _add, _ADD_EPILOG),
    "list": Action("list ACLs", _describe_list, _list),
    "delete": Action("delete ACLs", _describe_delete, _delete),
}
