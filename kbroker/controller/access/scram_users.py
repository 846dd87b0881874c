"""SCRAM credentials of users, among the configs of their entities in the store.

As Kafka keeps them: a config named like the mechanism. Whoever writes it (a request here, another
broker, a tool through ZooKeeper), the next login has it. No other process keeps any.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Protocol

from kbroker.controller.configs.configs import Configs
from kbroker.controller.configs.entity_admin import EntityChanges
from kbroker.errors import ErrorCode, WireError
from kbroker.ipc.calls import (
    AlterScram,
    DescribeScram,
    FoundCredential,
    ScramChange,
    ScramInfo,
    UserInfo,
    UserResult,
)
from kbroker.ipc.process_table import Address
from kbroker.logcontext import RateLimit
from kbroker.metastore.entities import USER, USERS, entity, parse_entity
from kbroker.security.sasl.scram import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    NUMBERS,
    ScramCredential,
    from_salted,
    from_text,
    to_text,
)

logger = logging.getLogger(__name__)

# How often what most users have is counted again.
USUAL_S = 10.0
MISSING = "Attempt to delete a user credential that does not exist"


class StoredUserConfigs(Protocol):
    """What this needs of ``StoredConfigs``."""

    @property
    def configs(self) -> Configs: ...


class Admin(Protocol):
    """What this needs of ``EntityAdmin``."""

    async def alter(self, changes: EntityChanges, asked_by: str) -> None: ...


class ScramUsers:
    """A broker's operations on the credentials, whoever is the controller.

    clock: monotonic, in seconds.
    """

    def __init__(
        self, stored: StoredUserConfigs, admin: Admin, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stored = stored
        self._admin = admin
        self._clock = clock
        self._damages = RateLimit()
        self._usual: dict[str, tuple[float, int]] = {}  # by mechanism: when, and what was found

    def credential(self, user: str, mechanism: str) -> ScramCredential | None:
        """What the store has; one that cannot be read counts as none."""
        text = self._configs_of(user).get(mechanism)
        if text is None:
            return None
        try:
            return from_text(text)
        except ValueError as error:
            if self._damages.due(user):
                logger.error(
                    "ignoring the credential for %s of user %r: %s", mechanism, user, error
                )
            return None

    def _configs_of(self, user: str) -> Mapping[str, str]:
        if not user:
            return {}
        return self._stored.configs.entities.get(entity(user=user).path, {})

    async def alter(self, sender: Address, asked: AlterScram) -> list[UserResult]:
        """Set and delete credentials: each user's as a whole or not at all."""
        by_user: dict[str, list[ScramChange]] = {}
        for change in asked.changes:
            by_user.setdefault(change.user, []).append(change)
        results = []
        for user, changes in by_user.items():
            try:
                await self._alter(user, changes, asked.asked_by)
                results.append(UserResult(user, 0, None))
            except WireError as error:
                results.append(UserResult(user, int(error.code), error.message))
        return results

    async def _alter(self, user: str, changes: list[ScramChange], asked_by: str) -> None:
        present, configs = self._configs_of(user), dict[str, str | None]()
        for change in changes:
            name = NUMBERS[change.mechanism]
            if change.iterations:
                configs[name] = to_text(
                    from_salted(name, change.salted_password, change.salt, change.iterations)
                )
            elif name not in present:
                raise WireError(ErrorCode.RESOURCE_NOT_FOUND, MISSING)
            else:
                configs[name] = None
        await self._admin.alter({entity(user=user).path: configs}, asked_by)

    def describe(self, sender: Address, asked: DescribeScram) -> list[UserInfo]:
        """Which credentials users have; None: all users that have any."""
        users = self._users() if asked.users is None else asked.users
        described = [UserInfo(user, self._infos(user)) for user in users]
        return described if asked.users is not None else [one for one in described if one.infos]

    def _users(self) -> list[str]:
        paths = [path for path in self._stored.configs.entities if path.startswith(f"{USERS}/")]
        entities = [entity for entity in map(parse_entity, paths) if len(entity.names) == 1]
        names = [one.name_of(USER) for one in entities]
        return sorted(name for name in names if name is not None)

    def _infos(self, user: str) -> list[ScramInfo]:
        infos = []
        for number, mechanism in NUMBERS.items():
            credential = self.credential(user, mechanism)
            if credential is not None:
                infos.append(ScramInfo(number, credential.iterations))
        return infos

    def usual_iterations(self, mechanism: str) -> int:
        """Those of most users, the least of them if there are several; what Kafka's tools choose if
        there is nobody. Others would tell a client that it has no such user.

        Looking at all users takes longer than finding one, so it is done seldom.
        """
        counted_s, iterations = self._usual.get(mechanism, (0.0, 0))
        if not iterations or self._clock() - counted_s >= USUAL_S:
            counts = Counter(
                configs[mechanism].rpartition("iterations=")[2]
                for configs in self._stored.configs.entities.values()
                if mechanism in configs
            )
            numbers = [(-times, int(text)) for text, times in counts.items() if _is_valid(text)]
            iterations = min(numbers)[1] if numbers else ITERATIONS_MIN
            self._usual[mechanism] = self._clock(), iterations
        return iterations

    def find(self, name: str, mechanism: str) -> FoundCredential:
        """The credential that a login needs."""
        credential = self.credential(name, mechanism)
        if credential is None:
            return FoundCredential(name, mechanism)
        return FoundCredential(name, mechanism, name, *credential)


def _is_valid(iterations: str) -> bool:
    digits = iterations.isascii() and iterations.isdigit() and len(iterations) <= 5
    return digits and ITERATIONS_MIN <= int(iterations) <= ITERATIONS_MAX
