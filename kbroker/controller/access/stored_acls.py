"""Keeps a broker's ACLs up to date with the store, whichever client changes them, and changes them.

As with AclAuthorizer of Apache Kafka, any broker writes ACLs, on condition that nobody else has
written in between, and notifies the others. At a start all are read; a node that cannot be read
ends it, as it may be one that denies something. Later, what was known of it stays in force.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import NamedTuple, Protocol

from kbroker.controller.store.store_failure import store_failure
from kbroker.controller.store.topic_nodes import DAMAGED
from kbroker.controller.store.watched_tree import WatchedTree
from kbroker.errors import ErrorCode, WireError
from kbroker.ipc.calls import AclResult, CreateAcls, DeleteAcls, DeletedAcl, FilterDeletions
from kbroker.ipc.pending import Pending, run
from kbroker.ipc.process_table import Address
from kbroker.logcontext import Whole
from kbroker.metastore import acl_nodes
from kbroker.metastore.acl_nodes import NONE, StoredAcls
from kbroker.metastore.settled import Fenced, SettledStore
from kbroker.metastore.store import (
    BadVersion,
    Node,
    NodeExists,
    NoNode,
    Store,
    StoreError,
    StoreFailed,
    StoreOperation,
)
from kbroker.security.acls import (
    EVERYBODY,
    WILDCARD,
    AccessControlEntry,
    AclBinding,
    PatternType,
    Permission,
    ResourcePattern,
)
from kbroker.security.operations import AclOperation
from kbroker.security.principal import by
from kbroker.wording import counted

logger = logging.getLogger(__name__)

# BOUND: nodes read in parallel, and changed together.
AT_ONCE = 100
# As in Kafka: how often a change is tried that others come in between of, and the pause.
ATTEMPTS, PAUSE_MS = 11, 100

Entries = frozenset[AccessControlEntry]
# For a resource of whose ACLs nothing is known but that there are some: they may deny something.
NOTHING_ALLOWED = StoredAcls(
    frozenset(
        {AccessControlEntry(EVERYBODY, WILDCARD, int(AclOperation.ALL), int(Permission.DENY))}
    ),
    [],
)
# What becomes of the ACLs of a resource.
Change = Callable[[ResourcePattern, Entries], Entries]


class BadAcls(Exception):
    """ACLs in the store that cannot be read; the message names the node."""


class AclDistribution(Protocol):
    """Distributes ACLs to the processes of this broker: ``Hosting``."""

    def set_acls(
        self, acls: Mapping[ResourcePattern, Collection[AccessControlEntry]]
    ) -> Pending[dict[str, int]]:
        """Resolves when every process has applied them."""


class KnownAcls(NamedTuple):
    version: int  # of the node
    acls: StoredAcls


class BrokerAcls:
    """The ACLs of one broker."""

    def __init__(
        self,
        store: Store,
        settled: SettledStore,
        user: AclDistribution,
        sleep: Callable[[int], Pending[None]],
        wall_ms: Callable[[], int],
        *,
        refuses_damage: bool = True,
    ) -> None:
        """refuses_damage: a node that cannot be read ends a start with BadAcls. Else, what it is
        about is denied to everybody, as nobody knows better.
        """
        self._refuses_damage = refuses_damage
        self._store = settled
        self._user = user
        self._sleep = sleep
        self._tree = WatchedTree[ResourcePattern](
            store,
            settled,
            sleep,
            wall_ms,
            prefixes=[f"{parent}/{acl_nodes.CHANGE}" for parent in acl_nodes.CHANGES.values()],
            named=acl_nodes.decode_change,
            read=self._read,
            read_all=self._read_all,
        )
        self._known: dict[ResourcePattern, KnownAcls] = {}
        self._is_begun = False

    def start(self) -> Pending[None]:
        """Resolves when all ACLs are read, and watched. BadAcls if one cannot be read."""
        return self._tree.events.put(self._begin)

    async def _begin(self) -> None:
        await self._tree.begin(acl_nodes.PERSISTENT_PATHS)
        self._is_begun = True
        count = sum(len(known.acls.entries) for known in self._known.values())
        logger.info("%s of %s", counted(count, "ACL"), counted(len(self._known), "resource"))

    # -- what others have changed --

    async def _read_all(self) -> None:
        acls = dict[ResourcePattern, KnownAcls]()
        for tree in (acl_nodes.ACLS, acl_nodes.PREFIXED_ACLS):
            for node in await self._store.subtree(tree):
                try:
                    resource = acl_nodes.resource_at(node.path)
                except ValueError as error:
                    logger.warning("ignoring the ACLs %s: %s", node.path, error)
                    continue
                if resource is None:
                    continue
                try:
                    acls[resource] = _known(node)
                except DAMAGED as error:
                    if self._refuses_damage and not self._is_begun:
                        raise BadAcls(bad_node(node.path, error)) from error
                    acls[resource] = self._unread(resource, error)
        gone = self._known.keys() - acls.keys()
        self._enter(acls | dict.fromkeys(gone, KnownAcls(-1, NONE)))

    async def _read(self, resources: Iterable[ResourcePattern]) -> None:
        """Read the ACLs of these resources, which others have changed."""
        rest = list(resources)
        while rest:
            acls, _ = await self._stored(rest[:AT_ONCE])
            changed = [
                one for one, known in acls.items() if self._entries(one) != known.acls.entries
            ]
            self._enter(acls)
            if changed:
                text = "another client has changed the ACLs of %s"
                logger.info(text, Whole(acl_nodes.names(changed)))
            del rest[:AT_ONCE]

    def _unread(self, resource: ResourcePattern, error: BaseException) -> KnownAcls:
        """What counts for a resource whose node cannot be read."""
        logger.error(
            "%s",
            bad_node(acl_nodes.path_of(resource), error),
            extra={"event": "stored_acls.bad-node"},
        )
        return self._known.get(resource, KnownAcls(0, NOTHING_ALLOWED))

    async def _stored(
        self, resources: Iterable[ResourcePattern]
    ) -> tuple[dict[ResourcePattern, KnownAcls], list[ResourcePattern]]:
        """What the store has of them, and which of them cannot be read."""
        asked = [(one, run(self._store.get(acl_nodes.path_of(one)))) for one in resources]
        acls, unread = dict[ResourcePattern, KnownAcls](), list[ResourcePattern]()
        for resource, reading in asked:
            try:
                acls[resource] = _known(await reading)
            except NoNode:
                acls[resource] = KnownAcls(-1, NONE)
            except DAMAGED as error:
                acls[resource] = self._unread(resource, error)
                unread.append(resource)
        return acls, unread

    def _entries(self, resource: ResourcePattern) -> Entries:
        known = self._known.get(resource)
        return NONE.entries if known is None else known.acls.entries

    def _enter(self, acls: Mapping[ResourcePattern, KnownAcls]) -> Pending[dict[str, int]]:
        """Take what the store has; resolves when every process has what has changed."""
        changed = {
            resource: known.acls.entries
            for resource, known in acls.items()
            if self._entries(resource) != known.acls.entries
        }
        for resource, known in acls.items():
            if known.version < 0:
                self._known.pop(resource, None)
            else:
                self._known[resource] = known
        return self._user.set_acls(changed)

    # -- changes by request --

    async def create(self, sender: Address, asked: CreateAcls) -> list[AclResult]:
        """Add ACLs. They are valid; those of one resource are added together, or not at all."""
        self._tree.check_connected()
        wanted: dict[ResourcePattern, set[AccessControlEntry]] = {}
        for resource, entry in asked.acls:
            wanted.setdefault(resource, set()).add(entry)

        def with_wanted(resource: ResourcePattern, entries: Entries) -> Entries:
            return entries | wanted[resource]

        errors = await self._change(list(wanted), with_wanted, asked.asked_by)
        results = [errors.get(acl.resource) for acl in asked.acls]
        return [AclResult(int(e.code), e.message) if e else AclResult() for e in results]

    async def delete(self, sender: Address, asked: DeleteAcls) -> list[FilterDeletions]:
        """Remove the ACLs that match filters."""
        self._tree.check_connected()
        matched: dict[AclBinding, int] = {}  # the first filter of each

        def without(resource: ResourcePattern, entries: Entries) -> Entries:
            kept = set(entries)
            for number, one in enumerate(asked.filters):
                if one.matches_resource(resource):
                    for entry in entries:
                        if entry in kept and one.matches_entry(entry):
                            kept.discard(entry)
                            matched.setdefault(AclBinding(resource, entry), number)
            return frozenset(kept)

        candidates = {resource for one in asked.filters for resource in one.named()}
        candidates |= {
            resource
            for resource in self._known
            if any(one.matches_resource(resource) for one in asked.filters)
        }
        errors = await self._change(sorted(candidates), without, asked.asked_by)
        deleted: list[list[DeletedAcl]] = [[] for _ in asked.filters]
        for acl, number in matched.items():
            error = errors.get(acl.resource)
            row = (
                DeletedAcl(acl)
                if error is None
                else DeletedAcl(acl, int(error.code), error.message)
            )
            deleted[number].append(row)
        return [FilterDeletions(rows) for rows in deleted]

    async def _change(
        self, resources: list[ResourcePattern], change: Change, asked_by: str
    ) -> dict[ResourcePattern, WireError]:
        """Change the ACLs of resources; returns the errors, once all processes have the changes."""
        errors: dict[ResourcePattern, WireError] = {}
        published: list[Pending[dict[str, int]]] = []
        for first in range(0, len(resources), AT_ONCE):
            some = resources[first : first + AT_ONCE]
            work = partial(self._change_some, some, change, asked_by)
            try:
                published.append(await self._tree.events.put(work))
            except (StoreFailed, StoreError, Fenced) as error:
                errors |= dict.fromkeys(some, store_failure(error))
            except WireError as error:
                errors |= dict.fromkeys(some, error)
        for pending in published:
            await pending
        return errors

    async def _change_some(
        self, resources: list[ResourcePattern], change: Change, asked_by: str
    ) -> Pending[dict[str, int]]:
        for attempt in range(ATTEMPTS):
            if attempt:
                await self._sleep(PAUSE_MS)
            before, unread = await self._stored(resources)
            if unread:
                names = acl_nodes.names(unread)
                text = f"The ACLs of {names} cannot be read; the broker's log says why."
                raise WireError(ErrorCode.UNKNOWN_SERVER_ERROR, text)
            after = {
                resource: known.acls._replace(entries=change(resource, known.acls.entries))
                for resource, known in before.items()
            }
            changed = [one for one in resources if after[one] != before[one].acls]
            writes = [w for one in changed for w in self._writes(one, before[one], after[one])]
            try:
                await self._store.apply_in_parts(writes)
            except (BadVersion, NodeExists, NoNode) as error:
                logger.info("changing ACLs again: another client changed %s", error.path)
                continue
            for resource in changed:
                _log_change(resource, before[resource].acls, after[resource], asked_by)
            if changed:
                before, _ = await self._stored(resources)
            return self._enter(before)
        text = "The ACLs are being changed by other clients all the time; try again."
        raise WireError(ErrorCode.UNKNOWN_SERVER_ERROR, text)

    def _writes(
        self, resource: ResourcePattern, before: KnownAcls, after: StoredAcls
    ) -> list[StoreOperation]:
        path = acl_nodes.path_of(resource)
        if not after.entries and not after.others:
            writes = [StoreOperation("delete", path, b"", before.version)]
        elif before.version < 0:
            writes = [StoreOperation("create", path, acl_nodes.encode(after))]
        else:
            writes = [StoreOperation("set", path, acl_nodes.encode(after), before.version)]
        if self._store.is_shared:
            parent = acl_nodes.CHANGES[PatternType(resource.pattern)]
            notice = acl_nodes.encode_change(resource)
            notices = f"{parent}/{acl_nodes.CHANGE}"
            writes.append(StoreOperation("create", notices, notice, sequential=True))
        return writes


def _known(node: Node) -> KnownAcls:
    return KnownAcls(node.stat.version, acl_nodes.decode(node.data))


def bad_node(path: str, error: BaseException) -> str:
    return (
        f"the ACLs in {path} of the metadata store cannot be read ({error!r}): correct the node, "
        "or remove it and create its ACLs again"
    )


def _log_change(
    resource: ResourcePattern, before: StoredAcls, after: StoredAcls, asked_by: str
) -> None:
    for entry in sorted(after.entries - before.entries):
        logger.info("ACL of %s added: %s%s", resource, entry, by(asked_by))
    for entry in sorted(before.entries - after.entries):
        logger.info("ACL of %s removed: %s%s", resource, entry, by(asked_by))
