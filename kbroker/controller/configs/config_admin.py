"""Alters the configs of topics, brokers and groups, by request or by reloading the file.

Every broker does, whoever is the controller; the others are told by a notice in the store. As in
``topic_admin``, a request is planned, stored and entered in one event of a queue, and then
published. A resource changes as a whole or not at all; one that is rejected does not keep the
others from changing.
"""

from __future__ import annotations

import json
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from kbroker.cluster.settings import DEFAULT, FILE, effective_config
from kbroker.cluster.stored_passwords import OLD_SECRET, decoded, encoded, encoder_of, reencoded
from kbroker.config import dynamic
from kbroker.config.broker_keys import BROKER_NAMES
from kbroker.config.client_metrics_config import (
    CLIENT_METRICS_KEYS,
    check_subscription_name,
)
from kbroker.config.group_config import GROUP_KEYS
from kbroker.config.key import Key
from kbroker.config.loader import (
    BrokerConfig,
    ConfigSource,
    PropertiesError,
    load_properties,
    without_effect,
)
from kbroker.config.resource_types import BROKER, CLIENT_METRICS, GROUP, NAMES, TOPIC
from kbroker.config.topic_config import UnknownSetting, unknown_name, validate_topic
from kbroker.config.topic_keys import TOPIC_KEYS
from kbroker.controller.configs.configs import Configs, ConfigsChanged
from kbroker.controller.election.events import EventQueue
from kbroker.controller.state import decisions
from kbroker.controller.state.decisions import Decision
from kbroker.controller.store import persistence
from kbroker.controller.store.store_failure import store_failure
from kbroker.controller.store.write_decided import write_decided
from kbroker.errors import ConfigError, ErrorCode, FileConfigError, WireError
from kbroker.ipc.calls import (
    AlterConfigs,
    ConfigResult,
    IncrementalAlterConfigs,
    ResourceChanges,
    ResourceSettings,
)
from kbroker.ipc.pending import Pending
from kbroker.ipc.process_table import Address
from kbroker.logcontext import Whole
from kbroker.metastore import paths
from kbroker.metastore.settled import Fenced, SettledStore
from kbroker.metastore.store import StoreError, StoreFailed
from kbroker.properties import read_properties
from kbroker.security.policies import ConfigRequest, Policies
from kbroker.security.principal import by
from kbroker.security.tls.listeners import TlsListeners

if TYPE_CHECKING:
    from kbroker.peers.security import PeerSecurity

logger = logging.getLogger(__name__)

NO_POLICIES = Policies()
KEYS: dict[int, Mapping[str, Key]] = {
    TOPIC: TOPIC_KEYS,
    BROKER: BROKER_NAMES,
    GROUP: GROUP_KEYS,
    CLIENT_METRICS: CLIENT_METRICS_KEYS,
}
FILE_LAYER_NAME = "file-settings.json"
# Configs of which an error says something about a file.
OF_FILES = (".location", ".password")
STORE_THAT_LOADS = (
    "a store that loads, for the same name as the present one; the broker's log has the reason"
)
KEYS_THAT_LOAD = "a key tab with the keys of the principal; the broker's log has the reason"

R = TypeVar("R", ResourceSettings, ResourceChanges)
# (kind, name in the image) -> settings after the change
Changes = dict[tuple[int, str], dict[str, str]]


class KnownTopics(Protocol):
    """What this needs of ``Metadata``."""

    def topic(self, name: str) -> object | None:
        """None if the topic is unknown or being deleted."""


class StoredSettings(Protocol):
    """What this needs of ``StoredConfigs``."""

    @property
    def configs(self) -> Configs: ...

    @property
    def events(self) -> EventQueue: ...

    @property
    def store(self) -> SettledStore: ...

    def check_connected(self) -> None:
        """REQUEST_TIMED_OUT while the store cannot be reached."""

    def set_configs(self, changed: ConfigsChanged) -> Pending[dict[str, int]]: ...


class ConfigAdmin:
    """A broker's operations on configs. ``config``: its effective config."""

    def __init__(
        self,
        stored: StoredSettings,
        topics: KnownTopics,
        broker_id: int,
        started_with: BrokerConfig,
        runtime_dir: str,
        tls: TlsListeners,
        policies: Policies = NO_POLICIES,
        check_sasl: Callable[[BrokerConfig], object] = lambda _: None,
        peer_security: Mapping[str, PeerSecurity] | None = None,
        first: BrokerConfig | None = None,
    ) -> None:
        """Start from the stored configs and the file as it was last read. tls, peer_security: this
        process's. check_sasl: raises ConfigError if clients could not authenticate with these
        configs. first: in effect until the stored configs have been read.
        """
        self._stored = stored
        self._topics = topics
        self._broker_id = broker_id
        self._configs = stored.configs
        self._events = stored.events
        self._started_with = started_with
        self._policies = policies
        self._check_sasl = check_sasl
        self._encoder = encoder_of(started_with)
        self._file_layer_path = os.path.join(runtime_dir, FILE_LAYER_NAME)
        self._tls = tls
        self._peer_security = peer_security or {}
        self.config = first or started_with
        if os.path.exists(self._file_layer_path):
            with open(self._file_layer_path, encoding="utf-8") as file:
                self._stored.set_configs(ConfigsChanged(brokers={FILE: json.load(file)}))
        if any(self._configs.brokers.values()):
            self.refresh()

    def changed(self, changed: ConfigsChanged) -> None:
        """Configs have changed in the store."""
        if changed.brokers:
            self.refresh()

    def refresh(self) -> None:
        """Take the configs as they are now."""
        layers = self._configs.brokers
        self.config = effective_config(self._started_with, layers, self._broker_id)
        self._tls.follow(self.config.of_listener)
        for security in self._peer_security.values():
            security.follow(self.config)

    def validate_topic(self, settings: Mapping[str, str]) -> None:
        """Raises ConfigError if a topic must not have these configs."""
        validate_topic(settings, self.config)

    # -- by request --------------------------------------------------------------------------

    async def alter_configs(self, sender: Address, asked: AlterConfigs) -> list[ConfigResult]:
        """Replace all configs of each resource."""

        def plan(resource: ResourceSettings, kind: int, name: str) -> dict[str, str]:
            settings: dict[str, str | None] = {}
            for key, value in resource.configs:
                if key in settings:
                    raise WireError(ErrorCode.INVALID_REQUEST, f"Setting '{key}' is given twice.")
                settings[key] = value
            reject_null(settings.items())
            if kind == TOPIC:
                return dynamic.replace_topic(settings, self.config)
            if kind == GROUP:
                return dynamic.replace_group(settings, self.config)
            if kind == CLIENT_METRICS:
                return dynamic.replace_client_metrics(settings)
            return dynamic.replace_broker(settings, self.config, per_broker=name != DEFAULT)

        return await self._altered(asked, asked.resources, plan)

    async def incremental_alter_configs(
        self, sender: Address, asked: IncrementalAlterConfigs
    ) -> list[ConfigResult]:
        """Change only the configs that are named."""

        def plan(resource: ResourceChanges, kind: int, name: str) -> dict[str, str]:
            ops = resource.configs
            if len({op.name for op in ops}) < len(ops):
                raise WireError(
                    ErrorCode.INVALID_REQUEST, "A request may change each setting only once."
                )
            reject_null((op.name, op.value) for op in ops if op.operation != dynamic.DELETE)
            if kind == TOPIC:
                current = self._configs.topic(self._existing(name))
                return dynamic.alter_topic(current, ops, self.config)
            if kind == GROUP:
                current = self._configs.groups.get(name, {})
                return dynamic.alter_group(current, ops, self.config)
            if kind == CLIENT_METRICS:
                current = self._configs.client_metrics.get(name, {})
                return dynamic.alter_client_metrics(current, ops)
            current = self._configs.brokers.get(name, {})
            readable = decoded(current, self._encoder)
            return dynamic.alter_broker(readable, ops, self.config, per_broker=name != DEFAULT)

        return await self._altered(asked, asked.resources, plan)

    async def _altered(
        self,
        asked: AlterConfigs | IncrementalAlterConfigs,
        resources: Sequence[R],
        plan: Callable[[R, int, str], dict[str, str]],
    ) -> list[ConfigResult]:
        """The results, once every process of this broker has applied the changes."""
        self._stored.check_connected()
        work = partial(self._alter, asked, resources, plan)
        results, published = await self._events.put(work)
        await published
        return results

    async def _alter(
        self,
        asked: AlterConfigs | IncrementalAlterConfigs,
        resources: Sequence[R],
        plan: Callable[[R, int, str], dict[str, str]],
    ) -> tuple[list[ConfigResult], Pending[Any]]:
        """The results, and a Pending that resolves when every process has applied the changes."""
        results: list[ConfigResult] = []
        changed, store = ConfigsChanged(), self._stored.store

        def decide() -> Decision:
            nonlocal results, changed
            results, changes = self._plan(resources, plan)
            changed = by_kind(changes)
            if asked.validate_only:
                return Decision([], [])
            return decisions.configure(self._configs, changed, is_shared=store.is_shared)

        async def reread() -> None:
            present = await persistence.reread_configs(store, self._configs, changed)
            self._stored.set_configs(present)

        nothing: Pending[None] = Pending()
        nothing.resolve()
        try:
            if any(resource.type == CLIENT_METRICS for resource in resources):
                # A store from before there were any has no node for them.
                await store.ensure((paths.CLIENT_METRICS_CONFIGS,))
            decision = await write_decided(store, decide, self._configs.note_written, reread)
        except (StoreFailed, StoreError, Fenced) as error:
            failed = failure(store_failure(error))
            return [result if result.error else failed for result in results], nothing
        if not decision.writes:
            return results, nothing
        return results, self._enter(changed, asked.asked_by)

    def _plan(
        self, resources: Sequence[R], plan: Callable[[R, int, str], dict[str, str]]
    ) -> tuple[list[ConfigResult], Changes]:
        """The results, and the decision to write."""
        results: list[ConfigResult] = []
        changes: Changes = {}
        keys = [(resource.type, resource.name) for resource in resources]
        named = Counter(keys)
        for resource, key in zip(resources, keys, strict=True):
            try:
                if named[key] > 1:
                    raise WireError(
                        ErrorCode.INVALID_REQUEST, "A request may contain each resource only once."
                    )
                kind, name = self._target(*key)
                planned = plan(resource, kind, name)
                if kind == BROKER:
                    planned = self._as_stored(resource, name, planned)
                    self._check_listeners(name, planned)
                self._policies.check_configs(policy_request(resource))
                changes[kind, name] = planned
                results.append(ConfigResult())
            except ConfigError as error:
                results.append(failure(WireError(code_of(error, key[0]), error.client_text)))
            except WireError as error:
                results.append(failure(error))
        return results, changes

    def _as_stored(
        self, resource: ResourceSettings | ResourceChanges, name: str, planned: Mapping[str, str]
    ) -> dict[str, str]:
        """The configs of brokers with their passwords encrypted. Raises WireError."""
        stored, kept = self._configs.brokers.get(name, {}), dict[str, str]()
        if isinstance(resource, ResourceChanges):
            # What cannot be decrypted, as the secret is another one, stays as it is.
            named = {op.name for op in resource.configs}
            lost = stored.keys() - decoded(stored, self._encoder).keys() - named
            kept = {unread: stored[unread] for unread in lost}
        return kept | encoded(planned, stored, self._encoder, name)

    def _check_listeners(self, name: str, planned: dict[str, str]) -> None:
        """Raises ConfigError if a listener cannot have these configs, such as a store that does
        not load. What the client named is opened here: it is told whether that loads, and no more.
        """
        stored = self._configs.brokers.get(name, {})
        config = effective_config(
            self._started_with, {**self._configs.brokers, name: planned}, self._broker_id
        )
        try:
            self._tls.check(config.of_listener)
            for security in self._peer_security.values():
                security.check(config)
        except ConfigError as error:
            if not error.key.endswith(OF_FILES):
                raise
            logger.warning("rejected a change of the settings of broker %s: %s", name, error)
            raise ConfigError(error.key, "(hidden)", STORE_THAT_LOADS) from None
        changed = dict(stored.items() ^ planned.items())
        if not any("sasl." in key for key in changed):
            return
        try:
            self._check_sasl(config)
        except FileConfigError as error:
            logger.warning("rejected a change of the settings of broker %s: %s", name, error)
            raise ConfigError(error.key, "(hidden)", KEYS_THAT_LOAD) from None

    def _target(self, kind: int, name: str) -> tuple[int, str]:
        if kind == TOPIC:
            return kind, self._existing(name)
        if kind == GROUP and name:
            return kind, name  # also one that is not there yet
        if kind == GROUP:
            raise WireError(ErrorCode.INVALID_REQUEST, "There are no default group settings.")
        if kind == CLIENT_METRICS:
            check_subscription_name(name)
            return kind, name
        if kind != BROKER:
            raise WireError(
                ErrorCode.INVALID_REQUEST,
                f"Settings of a {NAMES.get(kind, 'resource of that kind')} cannot be changed.",
            )
        if name == "":
            return kind, DEFAULT
        if name != str(self._broker_id):
            raise WireError(
                ErrorCode.INVALID_REQUEST,
                f"This is not broker '{name}' but {self._broker_id}: its settings are changed"
                " there, or for all brokers with an empty name.",
            )
        return kind, name

    def _existing(self, name: str) -> str:
        if self._topics.topic(name) is None:
            raise WireError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"This server does not host topic '{name}'."
            )
        return name

    def _settings_of(self, kind: int, name: str) -> Mapping[str, str]:
        if kind == TOPIC:
            return self._configs.topic(self._existing(name))
        configs = {
            GROUP: self._configs.groups,
            BROKER: self._configs.brokers,
            CLIENT_METRICS: self._configs.client_metrics,
        }
        return configs[kind].get(name, {})

    def _enter(self, changed: ConfigsChanged, asked_by: str) -> Pending[Any]:
        for kind, configs in (
            (TOPIC, changed.topics),
            (BROKER, changed.brokers),
            (GROUP, changed.groups),
            (CLIENT_METRICS, changed.client_metrics),
        ):
            for name, config in configs.items():
                names = ", ".join(sorted(config)) or "none"
                logger.info("settings of %s %s: %s%s", NAMES[kind], name, names, by(asked_by))
                before = self._settings_of(kind, name)
                for key, text in changed_keys(KEYS[kind], config, before):
                    remark = without_effect(key, key.parse(text))
                    if remark is not None:
                        logger.warning(
                            "%s %s: %s", NAMES[kind], name, remark,
                            extra={"event": "config_admin.without-effect"},
                        )  # fmt: skip
                new = sorted(key for key in config.keys() - before.keys() if key not in KEYS[kind])
                if new:  # one line, however many there are
                    texts = (unknown_name(key, None, KEYS[kind]).client_text for key in new)
                    logger.warning(
                        "%s %s: %s; stored, and without effect",
                        NAMES[kind], name, "; ".join(texts),
                    )  # fmt: skip
        return self._stored.set_configs(changed)

    # -- passwords ---------------------------------------------------------------------------

    def reencode(self) -> Pending[None]:
        """Encrypt this broker's stored passwords with the present secret, if there is an old one.
        Called once, when the stored configs have been read.
        """
        return self._events.put(self._reencode)

    async def _reencode(self) -> None:
        if not self._started_with[OLD_SECRET]:
            return
        name, changed = str(self._broker_id), ConfigsChanged()
        store = self._stored.store

        def decide() -> Decision:
            nonlocal changed
            layer = reencoded(self._configs.brokers.get(name, {}), self._encoder)
            changed = ConfigsChanged(brokers={} if layer is None else {name: layer})
            return decisions.configure(self._configs, changed, is_shared=store.is_shared)

        async def reread() -> None:
            present = await persistence.reread_configs(store, self._configs, changed)
            self._stored.set_configs(present)

        try:
            decision = await write_decided(store, decide, self._configs.note_written, reread)
        except (StoreFailed, StoreError, Fenced) as error:
            logger.error("cannot encrypt the stored passwords with the new secret: %s", error)
            return
        if decision.writes:
            logger.info(
                "the stored passwords of this broker are encrypted with the new secret; "
                "%s is no longer needed",
                OLD_SECRET,
            )
            self._stored.set_configs(changed)

    # -- by file -----------------------------------------------------------------------------

    def reload(self, path: str, overrides: Mapping[str, str]) -> Pending[bool]:
        """Reload the file. Returns whether anything changed that takes effect without a restart."""
        return self._events.put(partial(self._reload, path, overrides))

    async def _reload(self, path: str, overrides: Mapping[str, str]) -> bool:
        try:
            # A controller must not block on a FIFO without a writer.
            pairs = read_properties(path, regular_only=True)
            if not pairs:
                # Most likely it is being written, or the disk was full.
                text = "it has no settings; to return to all defaults, restart the broker"
                raise PropertiesError(text)
            fresh, warnings = load_properties(pairs, overrides)
            config, applied, waiting = dynamic.reload(self.config, fresh)
        except (OSError, PropertiesError, ConfigError) as error:
            logger.error("%s was reloaded but is not used: %s", path, error)
            return False
        for warning in warnings:
            logger.warning("%s", Whole(warning), extra={"event": "config_admin.warning"})
        if waiting:
            names = Whole(", ".join(waiting))
            logger.warning(
                "changed, but takes effect only after a restart of the broker: %s", names
            )
        logger.info("%s was reloaded; changed: %s", path, Whole(", ".join(applied) or "nothing"))
        unset = [name for name in applied if not config.is_set(name)]
        if unset:
            logger.warning(
                "no longer in the file, so reset to their defaults: %s", Whole(", ".join(unset))
            )
        if not applied:
            return False
        layer = dict(dict(config.layers())[ConfigSource.STATIC_BROKER])
        try:
            self._keep_file_layer(layer)
        except OSError as error:
            logger.error("%s was reloaded but is not used: %s", path, error)
            return False
        self.config = config
        self._stored.set_configs(ConfigsChanged(brokers={FILE: layer}))
        return True

    def _keep_file_layer(self, layer: dict[str, str]) -> None:
        """Save the file's configs for the next controller process, which starts from the old ones.

        Replaced in one step, not synced: it has to outlive this process, not the machine.
        """
        written = self._file_layer_path + ".new"
        with open(written, "w", encoding="utf-8", opener=private) as file:
            json.dump(layer, file)
        os.replace(written, self._file_layer_path)


def by_kind(changes: Changes) -> ConfigsChanged:
    """Split changes by kind."""
    topics, brokers, groups, subscriptions = (
        {name: config for (kind, name), config in changes.items() if kind == wanted}
        for wanted in (TOPIC, BROKER, GROUP, CLIENT_METRICS)
    )
    return ConfigsChanged(topics, brokers, groups, client_metrics=subscriptions)


def policy_request(resource: ResourceSettings | ResourceChanges) -> ConfigRequest:
    """What a request sets, as a policy sees it."""
    configs = {
        config.name: config.value
        for config in resource.configs
        if config.value is not None
        and not (isinstance(config, dynamic.AlterOp) and config.operation == dynamic.DELETE)
    }
    return ConfigRequest(NAMES[resource.type], resource.name, configs)


def private(path: str, flags: int) -> int:
    """An opener for private files: configs may contain passwords."""
    return os.open(path, flags, 0o600)


def reject_null(settings: Any) -> None:
    """Raises INVALID_REQUEST if a config has a null value."""
    missing = [name for name, value in settings if value is None]
    if missing:
        raise WireError(
            ErrorCode.INVALID_REQUEST, f"Null is not a value for {', '.join(sorted(missing))}."
        )


def code_of(error: ConfigError, kind: int) -> ErrorCode:
    """COMPAT: Kafka returns INVALID_REQUEST for a broker's configs, and INVALID_CONFIG where
    something is added to one that is not a list, or does not exist (ConfigAdminManager; KAFKA-13609
    calls it a bug that stays). So it is for names that Kafka would take.
    """
    of_names = dynamic.NotAList | dynamic.RefusedName | UnknownSetting
    if kind == BROKER and not isinstance(error, of_names):
        return ErrorCode.INVALID_REQUEST
    return ErrorCode.INVALID_CONFIG


def changed_keys(
    keys: Mapping[str, Key], config: Mapping[str, str], before: Mapping[str, str]
) -> Iterator[tuple[Key, str]]:
    """The configs whose value has changed."""
    for name, text in config.items():
        if name in keys and before.get(name) != text:
            yield keys[name], text


def failure(error: WireError) -> ConfigResult:
    return ConfigResult(int(error.code), error.message)
