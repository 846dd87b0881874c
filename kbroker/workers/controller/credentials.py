"""What the controller process knows of users and tokens, for those who log in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from kbroker.config.loader import BrokerConfig
from kbroker.controller.access.disguise import Disguise
from kbroker.controller.access.scram_users import ScramUsers
from kbroker.controller.access.stored_tokens import Tokens
from kbroker.ipc import calls
from kbroker.ipc.pending import Pending, run
from kbroker.ipc.process_table import Address
from kbroker.ipc.rpc import Rpc
from kbroker.metastore.settled import SettledStore
from kbroker.metastore.store import Store
from kbroker.security.delegation import Lifetimes, Secrets
from kbroker.security.sasl.scram import ITERATIONS_MIN
from kbroker.workers.base import raise_failure


class CredentialsProcess(Protocol):
    """What this needs of the controller process."""

    @property
    def config(self) -> BrokerConfig: ...

    @property
    def rpc(self) -> Rpc: ...

    @property
    def store(self) -> Store: ...

    @property
    def own_store(self) -> SettledStore: ...


class Credentials:
    """SCRAM users and delegation tokens. is_active: whether this broker is the controller, which
    removes tokens that have ended. wall_ms: ms since 1970.
    """

    def __init__(
        self,
        process: CredentialsProcess,
        users: ScramUsers,
        is_active: Callable[[], bool],
        wall_ms: Callable[[], int],
    ) -> None:
        self._users = users
        self._is_active = is_active
        self._sleep = process.rpc.sleep
        self._interval_ms: int = process.config["delegation.token.expiry.check.interval.ms"]
        self._disguise = Disguise(process.own_store)
        self._uses_sasl = any(listener.uses_sasl for listener in process.config.listeners)
        self._tokens = _tokens(process, wall_ms)
        serve = process.rpc.serve
        serve(calls.FIND_CREDENTIAL, self.find)
        serve(calls.ALTER_SCRAM, users.alter)
        serve(calls.DESCRIBE_SCRAM, users.describe)
        if self._tokens is not None:
            serve(calls.CREATE_TOKEN, self._tokens.create)
            serve(calls.RENEW_TOKEN, self._tokens.renew)
            serve(calls.EXPIRE_TOKEN, self._tokens.expire)
            serve(calls.DESCRIBE_TOKENS, self._tokens.describe)

    def start(self) -> Pending[None]:
        """Resolves when all that logins need of the store is read, and watched."""
        return run(self._start())

    async def _start(self) -> None:
        if self._uses_sasl:
            await self._disguise.start()
        if self._tokens is not None:
            await self._tokens.start()
            self._sleep(self._interval_ms).then(self._check)

    def _check(self, _: Pending[None]) -> None:
        assert self._tokens is not None
        if self._is_active():
            self._tokens.remove_ended().then(raise_failure)
        self._sleep(self._interval_ms).then(self._check)

    async def find(self, sender: Address, asked: calls.FindCredential) -> calls.FoundCredential:
        """The credential that a login needs; for a user or token that does not exist, a salt and
        iterations like those of others.
        """
        if not asked.is_token:
            credential = self._users.find(asked.name, asked.mechanism)
        elif self._tokens is not None:
            credential = await self._tokens.find(asked.name, asked.mechanism)
        else:
            credential = calls.FoundCredential(asked.name, asked.mechanism)
        if credential.user is None:
            credential.salt = self._disguise.salt(asked.mechanism, asked.name)
            credential.iterations = ITERATIONS_MIN
            if not asked.is_token:
                credential.iterations = self._users.usual_iterations(asked.mechanism)
        return credential


def _tokens(process: CredentialsProcess, wall_ms: Callable[[], int]) -> Tokens | None:
    config = process.config
    key = config["delegation.token.master.key"]
    if not key:
        return None
    return Tokens(
        process.store,
        process.own_store,
        Secrets(key),
        Lifetimes(
            config["delegation.token.max.lifetime.ms"], config["delegation.token.expiry.time.ms"]
        ),
        process.rpc.sleep,
        wall_ms,
    )
