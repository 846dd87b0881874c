"""``kafka-delegation-tokens``: create, renew, expire and describe delegation tokens."""

from __future__ import annotations

import base64
import binascii
from datetime import datetime
from typing import TYPE_CHECKING

from kbroker.cli.kafka.options import Given, Option, WrongUse, flag, valued
from kbroker.cli.kafka.running import BOOTSTRAP, Tool, ToolFailed, connected

if TYPE_CHECKING:
    from kbroker.client.admin.tokens import Principal, Token
    from kbroker.client.connections.cluster import Cluster

_LINE = "{:<15} {:<30} {:<15} {:<15} {:<25} {:<15} {:<15} {:<15}"
_HEADS = ("TOKENID", "HMAC", "OWNER", "REQUESTER", "RENEWERS", "ISSUEDATE", "EXPIRYDATE", "MAXDATE")
_NEEDS = {
    "create": ("max-life-time-period",),
    "renew": ("hmac", "renew-time-period"),
    "expire": ("hmac", "expiry-time-period"),
    "describe": (),
}
_EXCLUDES = {
    "create": ("hmac", "renew-time-period", "expiry-time-period"),
    "renew": ("renewer-principal", "max-life-time-period", "expiry-time-period", "owner-principal"),
    "expire": ("renew", "max-life-time-period", "renew-time-period", "owner-principal"),
    "describe": ("renew-time-period", "max-life-time-period", "hmac", "expiry-time-period"),
}


def _period(name: str, text: str) -> Option:
    return valued(name, name, text, kind=int, long=True, optional=True)


OPTIONS = (
    BOOTSTRAP,
    valued("command-config", "Config file", "A file with settings of a client, with its login; "
           "required."),
    flag("create", "Create a token."),
    flag("renew", "Let a token be valid for longer."),
    flag("expire", "Let a token end."),
    flag("describe", "Print tokens."),
    valued("owner-principal", "owner-principal", "Whose tokens, as User:name; may be repeated.",
           optional=True),
    valued("renewer-principal", "renewer-principal", "Who may renew it, too, as User:name; may be "
           "repeated.", optional=True),
    _period("max-life-time-period", "With --create, the longest life in ms, -1: as the brokers "
            "have it."),
    _period("renew-time-period", "With --renew, ms from now on, -1: as the brokers have it."),
    _period("expiry-time-period", "With --expire, ms from now on, -1: at once."),
    valued("hmac", "hmac", "The token, as --create and --describe print it.", optional=True),
)  # fmt: skip


def _run(given: Given) -> int:
    actions = [name for name in _NEEDS if name in given]
    if len(actions) != 1:
        raise WrongUse(
            "Command must include exactly one action: --create, --renew, --expire or --describe"
        )
    (action,) = actions
    given.require("bootstrap-server", "command-config", *_NEEDS[action])
    given.exclude(action, _EXCLUDES[action])
    with connected(given.one("bootstrap-server"), given.one("command-config")) as cluster:
        _ACTIONS[action](given, cluster)
    return 0


def _principals(given: Given, option: str) -> list[Principal]:
    """Raises ToolFailed."""
    from kbroker.client.admin.tokens import Principal

    principals = []
    for text in given.all(option) if option in given else ():
        kind, colon, name = text.strip().partition(":")
        if not colon:
            raise ToolFailed(
                f"expected a string in format principalType:principalName but got {text.strip()}"
            )
        principals.append(Principal(kind, name))
    return principals


def _listed(principals: list[Principal]) -> str:
    return f"[{', '.join(map(str, principals))}]"


def _hmac(given: Given) -> bytes:
    """Raises ToolFailed."""
    try:
        return base64.b64decode(given.one("hmac"), validate=True)
    except binascii.Error as error:
        raise ToolFailed(f"--hmac is not base64: {error}") from error


def _date(at_ms: int) -> str:
    return f"{datetime.fromtimestamp(at_ms / 1000):%Y-%m-%dT%H:%M}"


def _create(given: Given, cluster: Cluster) -> None:
    from kbroker.client.admin.tokens import create_token

    renewers, owners = (
        _principals(given, "renewer-principal"),
        _principals(given, "owner-principal"),
    )
    life_ms = given.one("max-life-time-period")
    print(
        f"Calling create token operation with renewers :{_listed(renewers)} , max-life-time-period "
        f":{life_ms}"
    )
    token = create_token(cluster, renewers, life_ms=life_ms, owner=owners[0] if owners else None)
    print(f"Created delegation token with tokenId : {token.token_id}")
    _print_tokens([token])


def _print_tokens(tokens: list[Token]) -> None:
    print("\n" + _LINE.format(*_HEADS))
    for token in tokens:
        cells = (
            token.token_id,
            base64.b64encode(token.hmac).decode(),
            str(token.owner),
            str(token.requester or token.owner),
            _listed(token.renewers),
            *map(_date, (token.issued, token.renewed_until, token.ends)),
        )
        print("\n" + _LINE.format(*cells))


def _renew(given: Given, cluster: Cluster) -> None:
    from kbroker.client.admin.tokens import renew_token

    hmac, period_ms = given.one("hmac"), given.one("renew-time-period")
    print(f"Calling renew token operation with hmac :{hmac} , renew-time-period :{period_ms}")
    until = renew_token(cluster, _hmac(given), period_ms)
    # COMPAT: Kafka's tool ends no line here, nor below.
    print(f"Completed renew operation. New expiry date : {_date(until)}", end="")


def _expire(given: Given, cluster: Cluster) -> None:
    from kbroker.client.admin.tokens import expire_token

    hmac, period_ms = given.one("hmac"), given.one("expiry-time-period")
    print(f"Calling expire token operation with hmac :{hmac} , expire-time-period :{period_ms}")
    at = expire_token(cluster, _hmac(given), period_ms)
    print(f"Completed expire operation. New expiry date : {_date(at)}", end="")


def _describe(given: Given, cluster: Cluster) -> None:
    from kbroker.client.admin.tokens import describe_tokens

    owners = _principals(given, "owner-principal")
    if owners:
        print(f"Calling describe token operation for owners: {_listed(owners)}")
    else:
        print("Calling describe token operation for current user.")
    tokens = describe_tokens(cluster, owners or None)
    print(f"Total number of tokens : {len(tokens)}", end="")
    _print_tokens(tokens)


_ACTIONS = {"create": _create, "renew": _renew, "expire": _expire, "describe": _describe}
TOOL = Tool(
    "This tool helps to create, renew, expire, or describe delegation tokens.", OPTIONS, _run
)
