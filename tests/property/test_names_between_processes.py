"""Names that clients choose, on their way between the processes of a broker: whatever they are, the
other process lives, and whoever asked gets an answer.
"""

from __future__ import annotations

import json
import tempfile
from collections import deque
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from enum import IntEnum
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, NotRequired, TypeVar, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.coordinators.coordinators_bench import Bench, commit
from support.running.examples import examples

from kbroker.cluster.client_quotas import ClientQuotas
from kbroker.errors import ErrorCode, WireError
from kbroker.ipc import calls, documents
from kbroker.ipc.lane_calls import (
    MESSAGE_BYTES,
    TEXTS_BYTES_MAX,
    Assembler,
    LaneRequest,
    pack,
    request_parts,
)
from kbroker.metastore import acl_nodes, token_nodes
from kbroker.metastore.entities import entity, parse_entity
from kbroker.protocol.messages.heartbeat import HeartbeatRequest
from kbroker.protocol.messages.init_producer_id import InitProducerIdRequest
from kbroker.protocol.messages.join_group import JoinGroupRequest
from kbroker.security.acls import AccessControlEntry
from kbroker.security.delegation import DelegationToken
from kbroker.security.principal import KafkaPrincipal, from_wire, of_user, parse
from kbroker.security.sasl.exchange import Authenticated, NotAuthenticated
from kbroker.security.sasl.plain import PlainSaslServer
from kbroker.security.sasl.scram import ScramSaslServer
from kbroker.types import SlotId

pytestmark = pytest.mark.property

ODD = ["", ":", "a:b", "User:", "\0", "a\0b", "\ud800", "\udfff\ud800", "<default>", "%", "+", "/",
       "..", "*", "ANONYMOUS", "User:ANONYMOUS", "x" * 16_384, "ä" * 16_384, "x" * 100_000,
       "\u202e", "\U0001f600", '"', "\\", "\r\n"]  # fmt: skip
NAMES = st.sampled_from(ODD) | st.text(st.characters(exclude_categories=()), max_size=20)
# A connection's client has passed ``of_user``.
USERS = st.sampled_from([name for name in ODD if len(name) <= 8_192]) | st.text(max_size=20)


def shown_user(name: str) -> KafkaPrincipal | None:
    """The principal of a client that has this name; None if it is refused."""
    try:
        return of_user(name)
    except ValueError:
        return None


@settings(max_examples=examples(300), deadline=None)
@given(NAMES, NAMES, NAMES, st.integers(0, 3 * MESSAGE_BYTES))
def test_request_arrives_with_its_names_or_is_rejected(
    client_id: str, host: str, user: str, size: int
) -> None:
    who = KafkaPrincipal("User", user)
    asked = LaneRequest(7, SlotId(1), 2, 9, 3, client_id, host, who, bytes(size), (5, 1.5))
    try:
        parts = request_parts(asked)
    except WireError as error:
        assert error.code == ErrorCode.INVALID_REQUEST
        names = (client_id + host + str(who)).encode("utf-8", "surrogatepass")
        assert len(names) > TEXTS_BYTES_MAX
        return
    assert max(map(len, parts)) <= MESSAGE_BYTES + 100
    assembler = Assembler()
    assert [assembler.request(part) for part in parts][-1] == asked


@settings(max_examples=examples(200), deadline=None)
@given(NAMES)
def test_principal_that_is_let_in_can_be_written_everywhere(user: str) -> None:
    who = shown_user(user)
    if who is None:
        return
    assert parse(str(who)) == from_wire(who.to_wire()) == who
    assert len(str(who).encode()) < 32_767
    token = DelegationToken("id", who, who, (who,), 1, 2, 3)
    assert token_nodes.decode(token_nodes.path_of("id"), token_nodes.encode(token)) == token
    entry = AccessControlEntry(str(who), "*", 2, 3)
    stored = acl_nodes.StoredAcls(frozenset((entry,)), [])
    assert acl_nodes.decode(acl_nodes.encode(stored)) == stored


@settings(max_examples=examples(200), deadline=None)
@given(USERS, NAMES)
def test_quota_of_any_client_is_found(user: str, client_id: str) -> None:
    quotas = ClientQuotas({"users/%3Cdefault%3E": {"k": 5.0}, "clients/<default>": {"k": 1.0}})
    found = quotas.find("k", user, client_id)
    assert found is None or found.bound in (1.0, 5.0)
    with suppress(UnicodeEncodeError):  # a store has no halves of characters, and requests neither
        named = entity(user=user, client_id=client_id)
        if named.names:
            assert parse_entity(named.path) == named


@settings(max_examples=examples(200), deadline=None)
@given(NAMES, NAMES, NAMES)
def test_sasl_token_with_any_name_ends_in_an_answer(first: str, user: str, password: str) -> None:
    token = f"{first}\0{user}\0{password}".encode("utf-8", "surrogatepass")
    with suppress(NotAuthenticated):
        step = PlainSaslServer({user: password} if user else {}).evaluate(token)
        assert isinstance(step, Authenticated)
    with suppress(NotAuthenticated):
        message = f"n,a={first},n={user},r={password}".encode("utf-8", "surrogatepass")
        scram = ScramSaslServer("SCRAM-SHA-256")
        scram.evaluate(message)
        scram.resume(None)


# -- calls over mailboxes


def some(hint: Any, bound: dict[Any, Any] | None = None) -> st.SearchStrategy[Any]:
    """Values of a field of a document."""
    bound = bound or {}
    hint = bound.get(hint, hint) if isinstance(hint, TypeVar) else hint
    hint = getattr(hint, "__supertype__", hint)
    plain = {
        str: NAMES,
        int: st.integers(-(2**63), 2**63),
        bool: st.booleans(),
        Any: NAMES,
        float: st.floats(allow_nan=False),
        bytes: st.binary(max_size=9),
        NoneType: st.none(),
    }
    if hint in plain:
        return plain[hint]
    origin, args = get_origin(hint) or hint, get_args(hint)
    if origin in (Union, UnionType):
        return st.one_of([some(arg, bound) for arg in args])
    if origin is NotRequired:
        return some(args[0], bound)
    if origin is list:
        return st.lists(some(args[0], bound), max_size=2)
    if origin is dict:
        return st.dictionaries(NAMES, some(args[1], bound), max_size=2)
    if issubclass(origin, IntEnum | ErrorCode):
        return st.sampled_from(list(origin))
    inner = dict(zip(getattr(origin, "__parameters__", ()), args, strict=True))
    fields = {name: some(each, inner) for name, each in get_type_hints(origin).items()}
    return st.fixed_dictionaries(fields).map(lambda values: origin(**values))


@pytest.mark.parametrize("name", sorted(calls.OPERATIONS))
def test_call_with_any_names_is_read_as_it_was_made(name: str) -> None:
    row = calls.OPERATIONS[name]

    @settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
    @given(some(row.request))
    def check(asked: Any) -> None:
        text = documents.encode(asked).encode().decode()
        assert row.read_request(json.loads(text)) == asked

    check()


# -- the coordinators of an io worker


@contextmanager
def bench() -> Iterator[Bench]:
    with tempfile.TemporaryDirectory() as place, closing(Bench(Path(place))) as made:
        yield made


CHARACTERS = st.characters(exclude_categories=("Cs",))
SHORT = [name for name in ODD if len(name.encode("utf-8", "surrogatepass")) <= 20_000]
WIRE = st.text(CHARACTERS, max_size=20) | st.sampled_from(
    [name for name in SHORT if name.encode("utf-8", "replace").decode() == name]
)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(WIRE, WIRE, WIRE, USERS), min_size=1, max_size=4))
def test_coordinator_answers_whatever_its_clients_are_called(
    names: list[tuple[str, str, str, str]],
) -> None:
    with bench() as worker:
        tokens = []
        for group, member, client_id, user in names:
            who = shown_user(user)
            if who is None:
                continue
            worker.principal = who
            protocol = JoinGroupRequest.JoinGroupRequestProtocol(name=member[:50], metadata=b"")
            join = JoinGroupRequest(
                group_id=group, group_instance_id=client_id or None, session_timeout_ms=6_000,
                rebalance_timeout_ms=6_000, protocol_type="consumer", protocols=[protocol],
            )  # fmt: skip
            beat = HeartbeatRequest(group_id=group, generation_id=1, member_id=member)
            tokens += [worker.ask(commit(group), 6), worker.ask(beat, 3), worker.ask(join, 7)]
            init = InitProducerIdRequest(transactional_id=group, transaction_timeout_ms=-1)
            tokens.append(worker.ask(init, 2, 1))
        for _ in range(3):
            worker.end_turn()
            worker.clock.advance(5_000)
        assert {answer.token for answer in worker.responses()} == set(tokens)


@settings(max_examples=examples(80), deadline=None)
@given(st.binary(max_size=200), st.integers(0, 200), st.booleans())
def test_damaged_request_is_answered_and_ends_nobody(
    damage: bytes, at: int, keeps_size: bool
) -> None:
    """No client can send one; a fault of ours must not end a process either."""
    with bench() as worker:
        asked = LaneRequest(
            9, SlotId(0), 1, 12, 3, "c", "::1", KafkaPrincipal("User", "u"), b"body"
        )
        (part,) = request_parts(asked)
        damaged = part[:at] + damage + part[at + len(damage) * keeps_size :]
        message, _ = pack(deque([damaged]))
        worker.send(message)
        worker.end_turn()
        if damaged[:8] == part[:8]:
            answered = [answer.token for answer in worker.responses()]
            assert answered in ([9], [])  # []: a part of a longer one
        worker.ask(HeartbeatRequest(group_id="g", generation_id=1, member_id="m"), 3)
        worker.end_turn()
        assert len(worker.responses()) <= 2
