"""Delegation tokens in a store shared by several brokers: who changes them, and who knows them."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from kbroker.controller.access import stored_tokens
from kbroker.controller.access.stored_tokens import DESCRIBED_MAX, Tokens
from kbroker.errors import ErrorCode, WireError
from kbroker.ipc.calls import ChangeToken, CreateToken, DescribeTokens, FoundToken
from kbroker.ipc.pending import run
from kbroker.ipc.process_table import Address, ProcessKind
from kbroker.metastore import token_nodes
from kbroker.metastore.settled import SettledStore
from kbroker.metastore.simulated import Faults, SimulatedEnsemble
from kbroker.metastore.store import StoreOperation
from kbroker.security.delegation import DelegationToken, Lifetimes, Secrets
from kbroker.security.principal import KafkaPrincipal

pytestmark = pytest.mark.unit

CALLER = Address(ProcessKind.NETWORK, 0)
ALICE, BOB, CAROL = (KafkaPrincipal("User", name) for name in ("alice", "bob", "carol"))
LIFETIMES = Lifetimes(max_ms=100_000, renewal_ms=10_000)
SECRETS = Secrets("the key")
SHA = "SCRAM-SHA-512"


class Host:
    def __init__(self, cluster: Cluster) -> None:
        self.store = cluster.ensemble.connect()
        self.tokens = Tokens(
            self.store,
            SettledStore(self.store),
            SECRETS,
            LIFETIMES,
            cluster.ensemble.sleep,
            lambda: cluster.ensemble.now_ms + cluster.wall_ahead_ms,
        )
        self.started = self.tokens.start()


class Cluster:
    def __init__(self, hosts: int = 2) -> None:
        self.ensemble = SimulatedEnsemble(1, Faults(delay_max_ms=5))
        self.wall_ahead_ms = 1_000_000
        self.session_id = self.ensemble.begin_session()
        self.hosts = [self.join() for _ in range(hosts)]

    def join(self) -> Host:
        host = Host(self)
        self.ensemble.run_until(lambda: host.started.done)
        assert host.started.error is None
        return host

    @property
    def now_ms(self) -> int:
        return self.ensemble.now_ms + self.wall_ahead_ms

    def settle(self, within_ms: int = 400) -> None:
        waited = self.ensemble.sleep(within_ms)
        self.ensemble.run_until(lambda: waited.done)

    def outcomes(self, *coroutines: Any) -> list[Any]:
        """The results of requests that run at the same time; WireErrors as their codes."""
        outcomes = [run(one) for one in coroutines]
        self.ensemble.run_until(lambda: all(one.done for one in outcomes))
        results = []
        for one in outcomes:
            if isinstance(one.error, WireError):
                results.append(one.error.code)
                continue
            if one.error is not None:
                raise one.error
            results.append(one.value)
        return results

    def outcome(self, coroutine: Any) -> Any:
        return self.outcomes(coroutine)[0]

    def create(self, number: int = 0, owner: KafkaPrincipal = ALICE, **options: Any) -> FoundToken:
        asked = CreateToken(owner, options.pop("requester", owner), [BOB], -1)
        return self.outcome(self.hosts[number].tokens.create(CALLER, asked))

    def renew(
        self, number: int, principal: KafkaPrincipal, secret: bytes, period_ms: int = -1
    ) -> Any:
        return self.hosts[number].tokens.renew(CALLER, ChangeToken(principal, secret, period_ms))

    def expire(
        self, number: int, principal: KafkaPrincipal, secret: bytes, period_ms: int = -1
    ) -> Any:
        return self.hosts[number].tokens.expire(CALLER, ChangeToken(principal, secret, period_ms))

    def logs_in(self, number: int, token_id: str) -> str | None:
        """As whom somebody with the token logs in, None if it is not accepted."""
        return self.outcome(self.hosts[number].tokens.find(token_id, SHA)).user

    def stored(self) -> list[DelegationToken]:
        tree = self.ensemble.tree
        paths = [token_nodes.path_of(name) for name in tree.children(token_nodes.TOKENS)]
        return [token_nodes.decode(path, tree.get(path).data) for path in paths]

    def write(self, token: DelegationToken, data: bytes | None = None) -> None:
        """Write as another broker does."""
        data = token_nodes.encode(token) if data is None else data
        path = token_nodes.path_of(token.token_id)
        kind = "create" if self.ensemble.tree.exists(path) is None else "set"
        notice = token_nodes.encode_change(token.token_id)
        writes = [
            StoreOperation(kind, path, data),
            StoreOperation("create", token_nodes.CHANGE, notice, sequential=True),
        ]
        self.ensemble.apply(writes, self.session_id)

    def described(self, number: int, owners: list[KafkaPrincipal] | None) -> list[str]:
        found: list[str] = []
        while True:
            asked = DescribeTokens(owners, found[-1] if found else "")
            part = self.hosts[number].tokens.describe(CALLER, asked)
            found += [token.token_id for token in part.tokens]
            if part.is_last:
                return found


def test_token_is_stored_without_its_secret_and_known_to_all_brokers() -> None:
    cluster = Cluster()

    made = cluster.create(0)
    cluster.settle()

    assert made.secret == SECRETS.hmac_of(made.token_id)
    (stored,) = cluster.stored()
    assert stored == DelegationToken(made.token_id, ALICE, ALICE, (BOB,), *made[4:7])
    data = cluster.ensemble.tree.get(token_nodes.path_of(made.token_id)).data
    assert made.secret.hex().encode() not in data
    assert [cluster.described(number, None) for number in (0, 1)] == [[made.token_id]] * 2


def test_login_at_another_broker_right_after_the_creation_succeeds() -> None:
    """A driver hands its token to executors, which connect to any broker at once."""
    cluster = Cluster()
    made = cluster.create(0)

    found = cluster.outcome(cluster.hosts[1].tokens.find(made.token_id, SHA))

    assert (found.user, found.expires_ms) == ("alice", made.expires_ms)
    assert found.stored_key == SECRETS.credential(made.token_id, SHA).stored_key


def test_token_is_renewed_at_another_broker() -> None:
    cluster = Cluster()
    made = cluster.create(0)

    end = cluster.outcome(cluster.renew(1, BOB, made.secret, 50_000))
    cluster.settle()

    assert cluster.stored()[0].expires_ms == end.expires_ms > made.expires_ms
    found = cluster.outcome(cluster.hosts[0].tokens.find(made.token_id, SHA))
    assert found.expires_ms == end.expires_ms


def test_token_that_is_ended_lets_nobody_in() -> None:
    cluster = Cluster()
    made = cluster.create(0)
    assert cluster.logs_in(0, made.token_id) == "alice"

    end = cluster.outcome(cluster.expire(1, ALICE, made.secret))
    cluster.settle()

    assert end.expires_ms <= cluster.now_ms
    assert cluster.stored() == []
    assert [cluster.logs_in(number, made.token_id) for number in (0, 1)] == [None, None]
    not_found = ErrorCode.DELEGATION_TOKEN_NOT_FOUND
    assert cluster.outcome(cluster.renew(0, ALICE, made.secret)) == not_found


def test_token_lets_nobody_in_after_its_end_and_is_removed_later() -> None:
    cluster = Cluster()
    made, kept = cluster.create(0), cluster.create(0)
    cluster.wall_ahead_ms += 9_000
    cluster.outcome(cluster.renew(0, ALICE, kept.secret))
    cluster.wall_ahead_ms += 2_000

    logins = [cluster.logs_in(number, made.token_id) for number in (0, 1)]
    expired = cluster.outcome(cluster.renew(0, ALICE, made.secret))
    removing = cluster.hosts[1].tokens.remove_ended()
    cluster.ensemble.run_until(lambda: removing.done)
    cluster.settle()

    assert (logins, expired) == ([None, None], ErrorCode.DELEGATION_TOKEN_EXPIRED)
    assert [token.token_id for token in cluster.stored()] == [kept.token_id]
    assert cluster.described(0, None) == [kept.token_id]


def test_token_is_not_changed_by_others() -> None:
    cluster = Cluster()
    made = cluster.create(0)

    codes = cluster.outcomes(
        cluster.renew(0, CAROL, made.secret),
        cluster.expire(1, CAROL, made.secret),
        cluster.renew(0, ALICE, b"x" * 64),
        cluster.expire(0, ALICE, b""),
    )

    mismatch = ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
    not_found = ErrorCode.DELEGATION_TOKEN_NOT_FOUND
    assert codes == [mismatch, mismatch, not_found, not_found]
    assert len(cluster.stored()) == 1


def test_changes_by_two_brokers_at_once_are_both_made() -> None:
    cluster = Cluster()
    made = cluster.create(0)
    cluster.settle()

    ends = cluster.outcomes(
        cluster.renew(0, ALICE, made.secret, 20_000),
        cluster.renew(1, BOB, made.secret, 30_000),
        cluster.renew(0, BOB, made.secret, 40_000),
    )

    assert all(not isinstance(end, ErrorCode) for end in ends)
    assert cluster.stored()[0].expires_ms in {end.expires_ms for end in ends}


def test_renewal_and_end_at_once_leave_no_token() -> None:
    cluster = Cluster()
    made = cluster.create(0)
    cluster.settle()

    cluster.outcomes(cluster.expire(0, ALICE, made.secret), cluster.renew(1, BOB, made.secret))
    cluster.settle()

    assert cluster.stored() == []
    assert [cluster.described(number, None) for number in (0, 1)] == [[], []]


def test_tokens_of_a_kafka_are_known_at_the_start_and_after_its_changes() -> None:
    cluster = Cluster(1)
    old = DelegationToken(
        "of-kafka_1", CAROL, CAROL, (), 0, cluster.now_ms + 99_000, cluster.now_ms + 99_000
    )
    cluster.write(old)
    joined = cluster.join()
    cluster.hosts.append(joined)
    before = cluster.logs_in(1, "of-kafka_1")
    cluster.write(old._replace(expires_ms=1))
    cluster.settle()

    assert before == "carol"
    assert cluster.logs_in(1, "of-kafka_1") is None


def test_node_that_cannot_be_read_is_no_token(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster(1)
    made = cluster.create(0)
    (token,) = cluster.stored()
    cluster.write(token, b"{}")
    cluster.settle()
    cluster.hosts.append(cluster.join())

    assert [cluster.logs_in(number, made.token_id) for number in (0, 1)] == [None, None]
    assert token_nodes.path_of(made.token_id) in caplog.text


def test_owner_of_another_type_lets_nobody_in() -> None:
    """A principal that logs in is a user: Group:admins must not become User:admins."""
    cluster = Cluster(1)
    end = cluster.now_ms + 99_000
    owner = KafkaPrincipal("Group", "admins")
    cluster.write(DelegationToken("of-a-group", owner, owner, (), 0, end, end))
    cluster.settle()

    assert cluster.logs_in(0, "of-a-group") is None


@pytest.mark.parametrize("token_id", ["", "..", "a/b", "x" * 100, "nobody's", "unknown"])
def test_unknown_token_lets_nobody_in(token_id: str) -> None:
    assert Cluster(1).logs_in(0, token_id) is None


def test_many_unknown_tokens_ask_the_store_once() -> None:
    """Anybody may send ids: thousands of logins must not become thousands of reads."""
    cluster = Cluster(1)
    host = cluster.hosts[0]
    reads: list[str] = []
    children = host.store.children
    host.store.children = lambda path: (reads.append(path), children(path))[1]  # type: ignore

    found = cluster.outcomes(*(host.tokens.find(f"guess-{n}", SHA) for n in range(500)))

    assert {one.user for one in found} == {None}
    assert len(reads) <= 3


def test_tokens_are_described_by_owner_and_renewer_in_parts() -> None:
    cluster = Cluster(1)
    end = cluster.now_ms + 99_000
    for n in range(DESCRIBED_MAX * 2 + 1):
        cluster.write(DelegationToken(f"t{n:04}", ALICE, CAROL, (BOB,), 0, end, end))
    other = cluster.create(0, owner=CAROL).token_id
    cluster.settle(20_000)

    all_of_alice = [f"t{n:04}" for n in range(DESCRIBED_MAX * 2 + 1)]
    assert cluster.described(0, [ALICE]) == all_of_alice
    assert cluster.described(0, [BOB]) == sorted([*all_of_alice, other])
    assert cluster.described(0, [KafkaPrincipal("User", "dave")]) == []
    assert cluster.described(0, None) == sorted([*all_of_alice, other])


def test_tokens_beyond_the_limit_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_tokens, "TOKENS_MAX", 2)
    cluster = Cluster(1)

    results: list[Any] = [cluster.create(0) for _ in range(3)]

    assert results[2] == ErrorCode.POLICY_VIOLATION
    assert len(cluster.stored()) == 2


def test_secrets_are_in_no_log_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        cluster = Cluster()
        made = cluster.create(0)
        cluster.outcome(cluster.renew(1, BOB, made.secret))
        cluster.outcome(cluster.expire(0, ALICE, made.secret))

    assert made.token_id in caplog.text
    for secret in (made.secret.hex(), repr(made.secret), "the key"):
        assert secret not in caplog.text
