"""Keeps a broker's delegation tokens up to date with the store, whichever broker changes them, and
changes them by request.

As in Kafka, any broker writes tokens, and notifies the others. A token that this broker does not
know may have been created on another a moment ago, so notifications are taken before it is
rejected. A node that cannot be read is no token: nobody can log in with it.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import NamedTuple

from kbroker.controller.store.store_failure import store_failure
from kbroker.controller.store.topic_nodes import DAMAGED
from kbroker.controller.store.watched_tree import WatchedTree
from kbroker.errors import ErrorCode, WireError
from kbroker.ipc.calls import (
    ChangeToken,
    CreateToken,
    DescribeTokens,
    FoundCredential,
    FoundToken,
    FoundTokens,
    TokenEnd,
)
from kbroker.ipc.pending import Pending, run
from kbroker.ipc.process_table import Address
from kbroker.metastore import token_nodes
from kbroker.metastore.settled import Fenced, SettledStore
from kbroker.metastore.store import (
    BadVersion,
    Node,
    NoNode,
    Store,
    StoreError,
    StoreFailed,
    StoreOperation,
)
from kbroker.security import delegation
from kbroker.security.delegation import DelegationToken, Lifetimes, Secrets
from kbroker.security.sasl.scram import ScramCredential
from kbroker.wording import counted

logger = logging.getLogger(__name__)

# BOUND: tokens of a cluster; ZooKeeper names all of them in one response.
TOKENS_MAX = 20_000
# BOUND: nodes read in parallel; tokens and their renewers in one reply to another process.
AT_ONCE = 100
DESCRIBED_MAX = 400
# How often a change is tried that others come in between of.
ATTEMPTS = 5

# What becomes of a token; None: it ends now.
Change = Callable[[DelegationToken], DelegationToken | None]


class KnownToken(NamedTuple):
    version: int  # of the node
    token: DelegationToken


class Tokens:
    """The delegation tokens of one broker. wall_ms: ms since 1970."""

    def __init__(
        self,
        store: Store,
        settled: SettledStore,
        secrets: Secrets,
        lifetimes: Lifetimes,
        sleep: Callable[[int], Pending[None]],
        wall_ms: Callable[[], int],
    ) -> None:
        self._store = settled
        self._secrets = secrets
        self._lifetimes = lifetimes
        self._wall_ms = wall_ms
        self._tree = WatchedTree[str](
            store,
            settled,
            sleep,
            wall_ms,
            prefixes=[token_nodes.CHANGE],
            named=lambda _, data: token_nodes.decode_change(data),
            read=self._read,
            read_all=self._read_all,
        )
        self._known: dict[str, KnownToken] = {}
        self._ids: list[str] = []  # sorted
        self._by_secret: dict[bytes, str] = {}
        self._credentials: dict[tuple[str, str], ScramCredential] = {}

    def start(self) -> Pending[None]:
        """Resolves when all tokens are read, and watched."""
        return self._tree.events.put(self._begin)

    async def _begin(self) -> None:
        await self._tree.begin(token_nodes.PERSISTENT_PATHS)
        logger.info(
            "%s",
            counted(len(self._known), "delegation token"),
            extra={"event": "stored_tokens.known"},
        )

    # -- what others have changed --

    async def _read_all(self) -> None:
        tokens = {}
        for node in await self._store.subtree(token_nodes.TOKENS):
            known = _decoded(node)
            if known is not None:
                tokens[known.token.token_id] = known
        for token_id in self._known.keys() - tokens.keys():
            self._enter(token_id, None)
        for token_id, known in tokens.items():
            self._enter(token_id, known)

    async def _read(self, token_ids: Iterable[str]) -> None:
        rest = list(token_ids)
        while rest:
            asked = [
                (token_id, run(self._store.get(token_nodes.path_of(token_id))))
                for token_id in rest[:AT_ONCE]
            ]
            for token_id, reading in asked:
                try:
                    self._enter(token_id, _decoded(await reading))
                except NoNode:
                    self._enter(token_id, None)
            del rest[:AT_ONCE]

    def _enter(self, token_id: str, known: KnownToken | None) -> None:
        """Take what the store has of a token; None: nothing."""
        before = self._known.get(token_id)
        if known is not None:
            self._known[token_id] = known
            if before is None:
                self._ids.insert(bisect_right(self._ids, token_id), token_id)
                self._by_secret[self._secrets.hmac_of(token_id)] = token_id
        elif before is not None:
            del self._known[token_id]
            del self._ids[bisect_right(self._ids, token_id) - 1]
            del self._by_secret[self._secrets.hmac_of(token_id)]
            for key in [key for key in self._credentials if key[0] == token_id]:
                del self._credentials[key]

    # -- logins --

    async def find(self, token_id: str, mechanism: str) -> FoundCredential:
        """The credential that a login with a token needs."""
        nothing = FoundCredential(token_id, mechanism)
        if not token_nodes.is_token_id(token_id):
            return nothing
        if token_id not in self._known:
            await self._catch_up()
        known = self._known.get(token_id)
        if known is None or known.token.has_ended(self._wall_ms()):
            return nothing
        token = known.token
        if token.owner.type != delegation.USER:
            return nothing
        credential = self._credentials.get((token_id, mechanism))
        if credential is None:
            credential = self._secrets.credential(token_id, mechanism)
            self._credentials[token_id, mechanism] = credential
        return FoundCredential(
            token_id, mechanism, token.owner.name, *credential, min(token.expires_ms, token.max_ms)
        )

    async def _catch_up(self) -> None:
        try:
            await self._tree.catch_up()
        except (StoreFailed, StoreError, Fenced) as error:
            raise store_failure(error) from error

    # -- requests --

    async def create(self, sender: Address, asked: CreateToken) -> FoundToken:
        """Create a token for a principal that may have one."""
        self._tree.check_connected()
        if len(self._known) >= TOKENS_MAX:
            logger.error("rejecting a delegation token: there are %d already", len(self._known))
            raise WireError(ErrorCode.POLICY_VIOLATION)
        token = delegation.new_token(
            asked.owner,
            asked.requester,
            asked.renewers,
            asked.lifetime_ms,
            self._lifetimes,
            self._wall_ms(),
        )
        path = token_nodes.path_of(token.token_id)
        write = StoreOperation("create", path, token_nodes.encode(token))
        await self._tree.events.put(lambda: self._write(token.token_id, write))
        logger.info("created delegation token %s of %s", token.token_id, _named(token))
        return self._found(token)

    async def renew(self, sender: Address, asked: ChangeToken) -> TokenEnd:
        """Let a token live longer."""

        def renewed(token: DelegationToken) -> DelegationToken:
            return delegation.renewed(
                token, asked.principal, asked.period_ms, self._lifetimes, self._wall_ms()
            )

        return await self._changed(asked.secret, renewed, "renewed")

    async def expire(self, sender: Address, asked: ChangeToken) -> TokenEnd:
        """Let a token end earlier, or now."""

        def shortened(token: DelegationToken) -> DelegationToken | None:
            return delegation.shortened(token, asked.principal, asked.period_ms, self._wall_ms())

        return await self._changed(asked.secret, shortened, "set the end of")

    def describe(self, sender: Address, asked: DescribeTokens) -> FoundTokens:
        """The next tokens of owners; who may see them, the caller knows."""
        owners = None if asked.owners is None else set(asked.owners)
        tokens, room = list[FoundToken](), DESCRIBED_MAX
        for token_id in self._ids[bisect_right(self._ids, asked.after) :]:
            token = self._known[token_id].token
            if owners is None or not owners.isdisjoint(token.principals):
                room -= 1 + len(token.renewers)
                if room < 0 and tokens:
                    return FoundTokens(tokens, is_last=False)
                tokens.append(self._found(token))
        return FoundTokens(tokens, is_last=True)

    def _found(self, token: DelegationToken) -> FoundToken:
        return FoundToken(
            token.token_id,
            token.owner,
            token.requester,
            list(token.renewers),
            token.issued_ms,
            token.expires_ms,
            token.max_ms,
            self._secrets.hmac_of(token.token_id),
        )

    async def _changed(self, secret: bytes, change: Change, what: str) -> TokenEnd:
        self._tree.check_connected()
        if secret not in self._by_secret:
            await self._catch_up()
        token_id = self._by_secret.get(secret)
        if token_id is None:
            raise WireError(ErrorCode.DELEGATION_TOKEN_NOT_FOUND)
        return await self._tree.events.put(lambda: self._change(token_id, change, what))

    async def _change(self, token_id: str, change: Change, what: str) -> TokenEnd:
        for _ in range(ATTEMPTS):
            known = self._known.get(token_id)
            if known is None:
                raise WireError(ErrorCode.DELEGATION_TOKEN_NOT_FOUND)
            after = change(known.token)
            try:
                await self._write(token_id, _writing(known, after))
            except (BadVersion, NoNode):
                await self._read([token_id])
                continue
            if after is None:
                logger.info("ended delegation token %s of %s", token_id, _named(known.token))
                return TokenEnd(self._wall_ms())
            logger.info("%s delegation token %s of %s", what, token_id, _named(after))
            return TokenEnd(after.expires_ms)
        text = "The token is being changed by other clients all the time; try again."
        raise WireError(ErrorCode.UNKNOWN_SERVER_ERROR, text)

    async def _write(self, token_id: str, write: StoreOperation) -> None:
        """Write a token, notify the other brokers, and read it. BadVersion, NoNode, WireError."""
        writes = [write]
        if self._store.is_shared:
            notice = token_nodes.encode_change(token_id)
            writes.append(StoreOperation("create", token_nodes.CHANGE, notice, sequential=True))
        try:
            await self._store.apply(writes)
        except (BadVersion, NoNode):
            raise
        except (StoreFailed, StoreError, Fenced) as error:
            raise store_failure(error) from error
        await self._read([token_id])

    # -- time --

    def remove_ended(self) -> Pending[None]:
        """Remove the tokens that have ended; called now and then by the active controller."""
        return self._tree.events.put(self._remove_ended)

    async def _remove_ended(self) -> None:
        now = self._wall_ms()
        for token_id, known in list(self._known.items()):
            if not self._tree.is_connected:
                return
            if not known.token.has_ended(now):
                continue
            try:
                await self._write(token_id, _writing(known, None))
            except (BadVersion, NoNode):
                await self._read([token_id])
            except WireError as error:
                logger.error("cannot remove delegation token %s: %s", token_id, error)
                return
            else:
                logger.info("delegation token %s of %s has ended", token_id, _named(known.token))


def _decoded(node: Node) -> KnownToken | None:
    try:
        return KnownToken(node.stat.version, token_nodes.decode(node.path, node.data))
    except DAMAGED as error:
        logger.error("ignoring the delegation token in %s: %r", node.path, error)
        return None


def _writing(known: KnownToken, after: DelegationToken | None) -> StoreOperation:
    path = token_nodes.path_of(known.token.token_id)
    if after is None:
        return StoreOperation("delete", path, b"", known.version)
    return StoreOperation("set", path, token_nodes.encode(after), known.version)


def _named(token: DelegationToken) -> str:
    """For a log line."""
    return str(token.owner)
