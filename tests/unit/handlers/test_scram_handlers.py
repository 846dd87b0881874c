"""AlterUserScramCredentials and DescribeUserScramCredentials, with Kafka's errors."""

from __future__ import annotations

import hashlib
from types import SimpleNamespace
from typing import Any

import pytest
from support.network.network_process import NetworkProcess

from kbroker.controller.access.scram_users import USUAL_S, ScramUsers
from kbroker.controller.configs.configs import Configs
from kbroker.errors import ErrorCode, WireError
from kbroker.handlers.scram_credentials import CALL_USERS_MAX
from kbroker.ipc.calls import AlterScram, DescribeScram, ScramChange
from kbroker.ipc.pending import run
from kbroker.protocol.api import ApiKey, request_class
from kbroker.security.sasl.scram import from_password, to_text

pytestmark = pytest.mark.unit

ALTER = request_class(ApiKey.ALTER_USER_SCRAM_CREDENTIALS)
DESCRIBE = request_class(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS)
SALT = b"0123456789"


class Store:
    """The stored configs of users, as the controller process has them."""

    def __init__(self) -> None:
        self.configs = Configs()
        self.changes: list[tuple[Any, str]] = []
        self.failure: WireError | None = None

    async def alter(self, changes: Any, asked_by: str) -> None:
        if self.failure is not None:
            raise self.failure
        self.changes.append((changes, asked_by))
        for path, configs in changes.items():
            kept = self.configs.entities.setdefault(path, {})
            for name, value in configs.items():
                if value is None:
                    kept.pop(name)
                else:
                    kept[name] = value


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def process(store: Store) -> NetworkProcess:
    process = NetworkProcess()
    users = ScramUsers(store, store)

    def alter(to: Any, changes: list[Any], **rest: Any) -> Any:
        rows = [
            ScramChange(u, m, i, bytes.fromhex(s), bytes.fromhex(p)) for u, m, i, s, p in changes
        ]
        return run(users.alter(to, AlterScram(rows, **rest))).value

    process.set_response("alter_scram", alter)
    process.set_response("describe_scram", lambda to, users=None: described(users))

    def described(names: Any) -> Any:
        return users.describe(SimpleNamespace(), DescribeScram(names))

    return process


def upsertion(name: str, mechanism: int = 1, iterations: int = 4096, password: str = "pw") -> Any:
    digest = "sha512" if mechanism == 2 else "sha256"
    salted = hashlib.pbkdf2_hmac(digest, password.encode(), SALT, max(1, iterations))
    return ALTER.ScramCredentialUpsertion(
        name=name, mechanism=mechanism, iterations=iterations, salt=SALT, salted_password=salted
    )


def alter(process: NetworkProcess, *upsertions: Any, deleted: Any = ()) -> dict[str, Any]:
    deletions = [ALTER.ScramCredentialDeletion(name=n, mechanism=m) for n, m in deleted]
    results = process.ask(ALTER(deletions=deletions, upsertions=list(upsertions)), 0).results
    return {one.user: (one.error_code, one.error_message) for one in results}


def describe(process: NetworkProcess, *names: str) -> dict[str, Any]:
    users = [DESCRIBE.UserName(name=name) for name in names] if names else None
    results = process.ask(DESCRIBE(users=users), 0).results
    return {
        one.user: one.error_code
        or {info.mechanism: info.iterations for info in one.credential_infos}
        for one in results
    }


def test_credential_is_stored_as_kafka_has_it(process: NetworkProcess, store: Store) -> None:
    assert alter(process, upsertion("al ice")) == {"al ice": (0, None)}

    ((changes, asked_by),) = store.changes
    assert asked_by == "User:ANONYMOUS"
    config = changes["users/al%20ice"]["SCRAM-SHA-256"]
    assert config.startswith("salt=MDEyMzQ1Njc4OQ==,stored_key=")
    assert config.endswith(",iterations=4096")
    found = ScramUsers(store, store).find("al ice", "SCRAM-SHA-256")
    assert found.user == "al ice"
    expected = from_password("SCRAM-SHA-256", "pw", 4096, SALT)
    assert (found.salt, found.stored_key, found.server_key, found.iterations) == expected


def test_other_configs_of_the_user_stay(process: NetworkProcess, store: Store) -> None:
    store.configs.entities["users/a"] = {"producer_byte_rate": "5"}

    alter(process, upsertion("a"), upsertion("a", 2))
    assert alter(process, deleted=[("a", 1)]) == {"a": (0, None)}

    assert list(store.configs.entities["users/a"]) == ["producer_byte_rate", "SCRAM-SHA-512"]


@pytest.mark.parametrize(
    ("changes", "code", "text"),
    [
        ([upsertion("a", iterations=4095)], 93, "Too few iterations"),
        ([upsertion("a", iterations=16385)], 93, "Too many iterations"),
        ([upsertion("a", iterations=0)], 93, "Too few iterations"),
        ([upsertion("a", 0)], 33, "Unknown SCRAM mechanism"),
        ([upsertion("a", 3)], 33, "Unknown SCRAM mechanism"),
        ([upsertion("")], 93, "Username must not be empty"),
        ([upsertion("..")], 93, "Username must not be '.' or '..'"),
        ([upsertion("a", password="")], 93, "Password must not be empty"),
        ([upsertion("a", 2, password="")], 93, "Password must not be empty"),
        ([upsertion("x" * 1025)], 93, "Username must not have more than 1024 characters"),
        ([upsertion("a"), upsertion("a")], 92, "twice in the same request"),
        ([upsertion("a"), upsertion("a", 2, 1)], 93, "Too few iterations"),
    ],
)
def test_change_that_cannot_be_made_changes_nothing_of_its_user(
    process: NetworkProcess, store: Store, changes: list[Any], code: int, text: str
) -> None:
    results = alter(process, *changes, upsertion("other"))

    assert results["other"] == (0, None)
    found, message = results[changes[0].name]
    assert found == code
    assert text in message
    assert list(store.configs.entities) == ["users/other"]


def test_unknown_user_has_the_iterations_that_most_users_have(store: Store) -> None:
    """A client that is shown others knows that there is no such user."""
    now_s = 100.0
    users = ScramUsers(store, store, lambda: now_s)
    assert users.usual_iterations("SCRAM-SHA-256") == 4096
    for name, iterations in (("a", 8192), ("b", 8192), ("c", 4096)):
        credential = from_password("SCRAM-SHA-256", "pw", iterations)
        store.configs.entities[f"users/{name}"] = {"SCRAM-SHA-256": to_text(credential)}
    store.configs.entities["users/d"] = {"SCRAM-SHA-256": "damaged,iterations=9" + "9" * 5000}
    store.configs.entities["users/e"] = {"SCRAM-SHA-256": "x", "producer_byte_rate": "5"}

    assert users.usual_iterations("SCRAM-SHA-256") == 4096, "all users are not looked at each time"
    now_s += USUAL_S
    assert users.usual_iterations("SCRAM-SHA-256") == 8192
    assert users.usual_iterations("SCRAM-SHA-512") == 4096


def test_deletion_of_what_is_not_there_is_not_found(process: NetworkProcess) -> None:
    alter(process, upsertion("a"))

    results = alter(process, deleted=[("a", 2), ("b", 1), ("c", 9)])

    assert [code for code, _ in results.values()] == [
        ErrorCode.RESOURCE_NOT_FOUND,
        ErrorCode.RESOURCE_NOT_FOUND,
        ErrorCode.UNSUPPORTED_SASL_MECHANISM,
    ]
    assert describe(process, "a") == {"a": {1: 4096}}


def test_store_that_fails_is_told_for_each_user(process: NetworkProcess, store: Store) -> None:
    store.failure = WireError(ErrorCode.REQUEST_TIMED_OUT, "later")

    assert alter(process, upsertion("a"), upsertion("b")) == {
        "a": (ErrorCode.REQUEST_TIMED_OUT, "later"),
        "b": (ErrorCode.REQUEST_TIMED_OUT, "later"),
    }


def test_many_users_are_changed_in_parts(process: NetworkProcess) -> None:
    names = [f"u{number:03}" for number in range(CALL_USERS_MAX + 1)]

    results = alter(process, *map(upsertion, names))

    assert list(results) == names
    assert len(process.calls("alter_scram")) == 2
    assert list(describe(process)) == names


def test_users_are_described(process: NetworkProcess, store: Store) -> None:
    store.configs.entities |= {
        "users/quota": {"producer_byte_rate": "5"},
        "users/<default>": {"producer_byte_rate": "5"},
        "users/a/clients/b": {"producer_byte_rate": "5"},
        "users/bad": {"SCRAM-SHA-256": "nonsense"},
    }
    alter(process, upsertion("b", 1, 8192), upsertion("b", 2), upsertion("a b"))

    assert describe(process) == {"a b": {1: 4096}, "b": {1: 8192, 2: 4096}}
    assert describe(process, "b", "quota", "nobody", "", "x", "x") == {
        "b": {1: 8192, 2: 4096},
        "quota": ErrorCode.RESOURCE_NOT_FOUND,
        "nobody": ErrorCode.RESOURCE_NOT_FOUND,
        "": ErrorCode.RESOURCE_NOT_FOUND,
        "x": ErrorCode.DUPLICATE_RESOURCE,
    }
