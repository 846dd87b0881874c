"""The requests of delegation tokens: who may ask, what is asked of the controller process, and what
of its answer the client sees.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from support.network.network_process import NetworkProcess
from support.security.authorizers import Rules, deny_all

from kbroker.config.listeners import Listener
from kbroker.errors import ErrorCode, WireError
from kbroker.handlers.delegation_tokens import NAME_CHARS_MAX, RENEWERS_MAX
from kbroker.handlers.registry import HANDLERS
from kbroker.protocol.api import ApiKey, request_class
from kbroker.security.operations import AclOperation, Kind
from kbroker.security.principal import ANONYMOUS, KafkaPrincipal

pytestmark = pytest.mark.unit

ALICE, BOB = KafkaPrincipal("User", "alice"), KafkaPrincipal("User", "bob")
KEYS = [
    ApiKey.CREATE_DELEGATION_TOKEN,
    ApiKey.RENEW_DELEGATION_TOKEN,
    ApiKey.EXPIRE_DELEGATION_TOKEN,
    ApiKey.DESCRIBE_DELEGATION_TOKEN,
]
CREATE, DESCRIBE = request_class(KEYS[0]), request_class(KEYS[3])
NOT_ALLOWED = ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
SECRET = b"s" * 64


def process_for(
    principal: KafkaPrincipal = ALICE, protocol: str = "SASL_SSL", *, is_token: bool = False,
    key: str = "the key",
) -> NetworkProcess:  # fmt: skip
    process = NetworkProcess(delegation_token_master_key=key)
    process.context.listeners[0] = (Listener("CLIENTS", protocol, "", 9093), None)
    process.connection.access = process.accesses.of(principal, "198.51.100.4")
    if protocol.startswith("SASL"):
        process.connection.login = SimpleNamespace(principal=principal, is_token=is_token)
    return process


@pytest.fixture
def process() -> NetworkProcess:
    return process_for()


def row(token_id: str, owner: KafkaPrincipal, requester: KafkaPrincipal | None = None,
        renewers: tuple[KafkaPrincipal, ...] = ()) -> list[Any]:  # fmt: skip
    """A token as the controller process has it."""
    who = list(owner), list(requester or owner), [list(renewer) for renewer in renewers]
    return [token_id, *who, 10, 20, 30, SECRET.hex()]


def created(process: NetworkProcess, **fields: Any) -> list[dict[str, Any]]:
    """Let the controller process create what it is asked for; returns what it is asked."""
    asked: list[dict[str, Any]] = []

    def create(to: Any, **args: Any) -> Any:
        asked.append(args)
        owner, requester = KafkaPrincipal(*args["owner"]), KafkaPrincipal(*args["requester"])
        return row("an-id", owner, requester, tuple(KafkaPrincipal(*r) for r in args["renewers"]))

    process.set_response("create_token", create)
    return asked


def renewer(name: str, kind: str = "User") -> Any:
    return CREATE.CreatableRenewers(principal_type=kind, principal_name=name)


# -- who may ask


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.name)
@pytest.mark.parametrize(
    ("principal", "protocol", "is_token", "code"),
    [
        (ANONYMOUS, "PLAINTEXT", False, NOT_ALLOWED),
        (ALICE, "PLAINTEXT", False, NOT_ALLOWED),
        (ANONYMOUS, "SSL", False, NOT_ALLOWED),
        (ALICE, "SASL_SSL", True, NOT_ALLOWED),
        (ALICE, "SASL_PLAINTEXT", True, NOT_ALLOWED),
        (ALICE, "SSL", False, 0),
        (ALICE, "SASL_SSL", False, 0),
        (ALICE, "SASL_PLAINTEXT", False, 0),
    ],
)
def test_only_who_has_authenticated_without_a_token_may_ask(
    key: ApiKey, principal: KafkaPrincipal, protocol: str, is_token: bool, code: int
) -> None:
    process = process_for(principal, protocol, is_token=is_token)
    created(process)
    for operation in ("renew_token", "expire_token"):
        process.set_response(operation, lambda to, **args: {"expires_ms": 20})
    process.set_response("describe_tokens", lambda to, **a: {"tokens": [], "is_last": True})

    for version in range(HANDLERS[key].first_version, HANDLERS[key].last_version + 1):
        found = process.ask(request_class(key)(), version).error_code
        # A request with no renewers and no owners is complete.
        assert found == code
    assert bool(process.rpc.calls) == (code == 0 and key is not KEYS[3])


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.name)
@pytest.mark.parametrize("secret", ["", None])
def test_tokens_are_disabled_without_a_key(key: ApiKey, secret: str | None) -> None:
    process = process_for(key=secret) if secret is not None else NetworkProcess()
    if secret is None:
        process.context.listeners[0] = (Listener("CLIENTS", "SASL_SSL", "", 9093), None)
        process.connection.login = SimpleNamespace(principal=ALICE, is_token=False)

    response = process.ask(request_class(key)(), 1)

    assert response.error_code == ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
    assert process.rpc.calls == []


# -- create


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_token_is_created_for_the_client(process: NetworkProcess, version: int) -> None:
    asked = created(process)

    request = CREATE(renewers=[renewer("bob"), renewer("bob")], max_lifetime_ms=5)
    response = process.ask(request, version)

    assert asked == [{
        "owner": list(ALICE), "requester": list(ALICE), "renewers": [list(BOB)], "lifetime_ms": 5,
    }]  # fmt: skip
    assert response.error_code == 0
    assert (response.token_id, bytes(response.hmac)) == ("an-id", SECRET)
    assert (response.principal_type, response.principal_name) == ("User", "alice")
    times = response.issue_timestamp_ms, response.expiry_timestamp_ms, response.max_timestamp_ms
    assert times == (10, 20, 30)
    if version >= 3:
        assert response.token_requester_principal_name == "alice"


def test_token_for_another_owner_needs_create_tokens_on_it(process: NetworkProcess) -> None:
    asked = created(process)
    request = CREATE(owner_principal_type="User", owner_principal_name="bob")

    rules = deny_all()
    process.follow(rules)
    denied = process.ask(request, 3)
    questions = [entry[2:] for entry in rules.asked]
    process.follow(Rules(lambda *what: what == (AclOperation.CREATE_TOKENS, Kind.USER, "User:bob")))
    allowed = process.ask(request, 3)

    assert denied.error_code == ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
    assert (denied.principal_name, denied.token_requester_principal_name) == ("bob", "alice")
    assert questions == [(AclOperation.CREATE_TOKENS, Kind.USER, "User:bob")]
    assert (allowed.error_code, allowed.principal_name) == (0, "bob")
    (call,) = asked
    assert (call["owner"], call["requester"]) == (list(BOB), list(ALICE))


def test_token_for_oneself_needs_no_acl(process: NetworkProcess) -> None:
    created(process)
    process.follow(deny_all())
    request = CREATE(owner_principal_type="User", owner_principal_name="alice")

    assert process.ask(request, 3).error_code == 0


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"renewers": [renewer("bob", "Group")]}, ErrorCode.INVALID_PRINCIPAL_TYPE),
        ({"renewers": [renewer("")]}, ErrorCode.INVALID_REQUEST),
        ({"renewers": [renewer("x" * (NAME_CHARS_MAX + 1))]}, ErrorCode.INVALID_REQUEST),
        ({"renewers": [renewer(str(n)) for n in range(RENEWERS_MAX + 1)]},
         ErrorCode.INVALID_REQUEST),
        ({"owner_principal_type": "Group", "owner_principal_name": "g"},
         ErrorCode.INVALID_PRINCIPAL_TYPE),
        ({"owner_principal_name": "bob"}, ErrorCode.INVALID_PRINCIPAL_TYPE),
        ({"owner_principal_type": "User", "owner_principal_name": "x" * 2_000},
         ErrorCode.INVALID_REQUEST),
    ],
)  # fmt: skip
def test_token_of_impossible_principals_is_rejected(
    process: NetworkProcess, fields: dict[str, Any], code: ErrorCode
) -> None:
    response = process.ask(CREATE(**fields), 3)

    assert (response.error_code, response.token_id, bytes(response.hmac)) == (code, "", b"")
    assert response.expiry_timestamp_ms == -1
    assert process.rpc.calls == []


# -- renew and expire


@pytest.mark.parametrize(
    ("key", "operation", "field"),
    [
        (KEYS[1], "renew_token", "renew_period_ms"),
        (KEYS[2], "expire_token", "expiry_time_period_ms"),
    ],
)
def test_token_is_changed_by_its_secret(
    process: NetworkProcess, key: ApiKey, operation: str, field: str
) -> None:
    process.set_response(operation, lambda to, **args: {"expires_ms": 99})

    response = process.ask(request_class(key)(hmac=SECRET, **{field: 7}), 2)

    assert (response.error_code, response.expiry_timestamp_ms) == (0, 99)
    (call,) = process.calls(operation)
    assert call == {"principal": list(ALICE), "secret": SECRET.hex(), "period_ms": 7}

    def missing(to: Any, **args: Any) -> Any:
        raise WireError(ErrorCode.DELEGATION_TOKEN_NOT_FOUND)

    process.set_response(operation, missing)
    response = process.ask(request_class(key)(hmac=b"x"), 2)
    assert response.error_code == ErrorCode.DELEGATION_TOKEN_NOT_FOUND
    assert response.expiry_timestamp_ms == -1


# -- describe


def describe(process: NetworkProcess, owners: list[str] | None, version: int = 3) -> list[Any]:
    named = owners
    if owners is not None:
        owner = DESCRIBE.DescribeDelegationTokenOwner
        named = [owner(principal_type="User", principal_name=name) for name in owners]
    response = process.ask(DESCRIBE(owners=named), version)
    assert response.error_code == 0
    return list(response.tokens)


def in_parts(*parts: list[list[Any]]) -> Any:
    """Serves parts of the tokens, each after the last id of the one before."""
    starts = ["", *(part[-1][0] for part in parts[:-1])]

    def answer(to: Any, owners: Any, after: str = "") -> Any:
        number = starts.index(after)
        return {"tokens": parts[number], "is_last": number == len(parts) - 1}

    return answer


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_own_tokens_are_described_without_acls(process: NetworkProcess, version: int) -> None:
    process.follow(deny_all())
    parts = [row("a", ALICE, renewers=(BOB,)), row("b", BOB)], [row("c", BOB, renewers=(ALICE,))]
    process.set_response("describe_tokens", in_parts(*parts))

    found = describe(process, None, version)

    assert [token.token_id for token in found] == ["a", "c"]
    first = found[0]
    assert (first.principal_name, bytes(first.hmac)) == ("alice", SECRET)
    assert [one.principal_name for one in first.renewers] == ["bob"]
    assert (first.issue_timestamp, first.expiry_timestamp, first.max_timestamp) == (10, 20, 30)


def test_requester_sees_the_token_of_another_owner(process: NetworkProcess) -> None:
    process.follow(deny_all())
    process.set_response("describe_tokens", in_parts([row("a", BOB, requester=ALICE)]))

    (token,) = describe(process, ["bob"])

    assert (token.principal_name, token.token_requester_principal_name) == ("bob", "alice")
    (call,) = process.calls("describe_tokens")
    assert call["owners"] == [list(BOB)]


@pytest.mark.parametrize(
    ("allowed", "seen"),
    [
        ((AclOperation.DESCRIBE, Kind.DELEGATION_TOKEN, "b2"), ["b2"]),
        ((AclOperation.DESCRIBE_TOKENS, Kind.USER, "User:carol"), ["c"]),
        ((AclOperation.DESCRIBE_TOKENS, Kind.USER, "User:bob"), ["b1", "b2"]),
        ((AclOperation.CREATE_TOKENS, Kind.USER, "User:bob"), []),
    ],
)
def test_tokens_of_others_are_described_as_acls_say(
    process: NetworkProcess, allowed: Any, seen: list[str]
) -> None:
    """By DESCRIBE on a token, or DESCRIBE_TOKENS on its owner (KIP-373)."""
    process.follow(Rules(lambda *what: what == allowed))
    carol = KafkaPrincipal("User", "carol")
    tokens = [row("b1", BOB), row("b2", BOB), row("c", carol)]
    process.set_response("describe_tokens", in_parts(tokens))

    assert [token.token_id for token in describe(process, None)] == seen


def test_tokens_of_no_owners_are_none(process: NetworkProcess) -> None:
    assert describe(process, []) == []
    assert process.rpc.calls == []


def test_description_that_fails_has_the_error_and_no_part_of_the_tokens(
    process: NetworkProcess,
) -> None:
    def answer(to: Any, owners: Any, after: str = "") -> Any:
        if after:
            raise WireError(ErrorCode.REQUEST_TIMED_OUT)
        return {"tokens": [row("a", ALICE)], "is_last": False}

    process.set_response("describe_tokens", answer)

    response = process.ask(DESCRIBE(owners=None), 3)

    assert (response.error_code, response.tokens) == (ErrorCode.REQUEST_TIMED_OUT, [])
