"""Changes of settings while the broker runs: replaced, changed one by one, or read from the file.

Pure functions: they take the stored settings and the request, and return the settings to store.
They raise ConfigError if any part of the request is not allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from kbroker.config.broker_keys import BROKER_NAMES
from kbroker.config.client_metrics_config import CLIENT_METRICS_KEYS, validate_subscription
from kbroker.config.group_config import GROUP_KEYS, validate_group
from kbroker.config.key import CLASS, LIST, PER_BROKER, READ_ONLY, Key, split_list
from kbroker.config.loader import BrokerConfig, ConfigSource
from kbroker.config.topic_config import TopicConfig, unknown_name, validate_topic
from kbroker.config.topic_keys import TOPIC_KEYS
from kbroker.errors import ConfigError

# Operations, numbered as in IncrementalAlterConfigs.
SET = 0
DELETE = 1
APPEND = 2
SUBTRACT = 3
# COMPAT: at run time, these change for one listener only, by its prefix.
ONLY_OF_A_LISTENER = frozenset(
    (
        "ssl.key.password",
        "ssl.keystore.certificate.chain",
        "ssl.keystore.key",
        "ssl.keystore.location",
        "ssl.keystore.password",
        "ssl.keystore.type",
        "ssl.truststore.certificates",
        "ssl.truststore.location",
        "ssl.truststore.password",
        "ssl.truststore.type",
    )
)


# COMPAT: a broker's config may have any name, as it may be that of somebody's plug-in. BOUND: the
# number of those in a layer, the characters of a name, and those of all names and values. A layer
# of that size is at most 12 times as long in JSON, which is less than ZooKeeper takes.
UNKNOWN_MAX = 100
UNKNOWN_CHARS_MAX = 200
UNKNOWN_TOTAL_CHARS_MAX = 1 << 16
# A Kafka that shares the store makes objects of the classes that these name, whatever it was
# started with. Also within the name of a listener's config.
CONFIG_PROVIDERS = ".config.providers."


class NotAList(ConfigError):
    """APPEND or SUBTRACT of a setting that is no list."""


class RefusedName(ConfigError):
    """A setting that nobody here knows, and that is not stored for somebody else."""


class AlterOp(NamedTuple):
    """One operation of IncrementalAlterConfigs. DELETE has no value."""

    name: str
    operation: int
    value: str | None


def alter_topic(
    current: Mapping[str, str], ops: Iterable[AlterOp], broker: BrokerConfig
) -> dict[str, str]:
    """A topic's settings after the operations. Raises ConfigError."""
    inherited = TopicConfig({}, broker)
    changed = _apply(current, ops, TOPIC_KEYS, lambda key: inherited[key.name], "topic")
    # An unknown name that the request does not touch may stay.
    validate_topic({k: v for k, v in changed.items() if k in TOPIC_KEYS}, broker)
    return changed


def replace_topic(settings: Mapping[str, str | None], broker: BrokerConfig) -> dict[str, str]:
    """A topic's settings after AlterConfigs, which replaces all. Raises ConfigError."""
    changed = {name: _text(name, text) for name, text in settings.items()}
    validate_topic(changed, broker)
    return changed


def alter_group(
    current: Mapping[str, str], ops: Iterable[AlterOp], broker: BrokerConfig
) -> dict[str, str]:
    """A group's settings after the operations. Raises ConfigError."""
    changed = _apply(current, ops, GROUP_KEYS, lambda key: None, "group")
    validate_group(changed, broker)
    return changed


def replace_group(settings: Mapping[str, str | None], broker: BrokerConfig) -> dict[str, str]:
    """A group's settings after AlterConfigs, which replaces all. Raises ConfigError."""
    changed = {name: _text(name, text) for name, text in settings.items()}
    validate_group(changed, broker)
    return changed


def alter_client_metrics(current: Mapping[str, str], ops: Iterable[AlterOp]) -> dict[str, str]:
    """A subscription's settings after the operations. Raises ConfigError."""
    changed = _apply(
        current, ops, CLIENT_METRICS_KEYS, lambda key: key.default_value(), "subscription"
    )
    validate_subscription(changed)
    return changed


def replace_client_metrics(settings: Mapping[str, str | None]) -> dict[str, str]:
    """A subscription's settings after AlterConfigs, which replaces all. Raises ConfigError."""
    changed = {name: _text(name, text) for name, text in settings.items()}
    validate_subscription(changed)
    return changed


def alter_broker(
    current: Mapping[str, str], ops: Iterable[AlterOp], config: BrokerConfig, *, per_broker: bool
) -> dict[str, str]:
    """A dynamic layer of the broker after the operations. Raises ConfigError.

    current: the layer to change, that of this broker if ``per_broker``, else that for all brokers.
    config: the broker's configuration now, against which the new layer is checked as a whole.
    Unknown names that are stored already, such as by a Kafka, may stay, however many there are.
    """
    ops = list(ops)
    for op in ops:
        key = BROKER_NAMES.get(op.name)
        if key is not None:
            _check_list(key, op)
    for op in ops:
        if op.operation != DELETE:  # COMPAT: whatever has no value can be unset
            _check_dynamic(op.name, op.value, per_broker)
    changed = _apply(
        current, ops, BROKER_NAMES, lambda key: key.default_value(), takes_unknown=True
    )
    if any(op.operation != DELETE and op.name not in BROKER_NAMES for op in ops):
        _check_unknown(changed)
    _check_layer(changed, config, per_broker)
    return changed


def replace_broker(
    settings: Mapping[str, str | None], config: BrokerConfig, *, per_broker: bool
) -> dict[str, str]:
    """A dynamic layer of the broker after AlterConfigs, which replaces all. Raises ConfigError."""
    for name, text in settings.items():
        _check_dynamic(name, text, per_broker)
    changed = {name: _text(name, text) for name, text in settings.items()}
    _check_unknown(changed)
    _check_layer(changed, config, per_broker)
    return changed


def reload(current: BrokerConfig, fresh: BrokerConfig) -> tuple[BrokerConfig, list[str], list[str]]:
    """Apply the settings of a reloaded file that may change while the broker runs.

    Returns the configuration to use from now on (its dynamic layers are those of ``current``), the
    settings whose text changed and now count, and those that wait for a restart. Raises ConfigError
    if the new file does not go with the dynamic layers.
    """
    layers = dict(current.layers())
    static, wanted = (
        dict(layers[ConfigSource.STATIC_BROKER]),
        dict(fresh.layers())[ConfigSource.STATIC_BROKER],
    )
    applied, waiting = [], []
    for name in sorted({*static, *wanted}):
        if static.get(name) == wanted.get(name):
            continue
        if all(BROKER_NAMES[unit].dynamic == READ_ONLY for unit in BROKER_NAMES[name].synonyms):
            waiting.append(name)
            continue
        applied.append(name)
        if name in wanted:
            static[name] = wanted[name]
        else:
            del static[name]
    config = BrokerConfig(
        static,
        dynamic_default=layers[ConfigSource.DYNAMIC_DEFAULT_BROKER],
        dynamic_broker=layers[ConfigSource.DYNAMIC_BROKER],
    )
    return config, applied, waiting


def _apply(
    current: Mapping[str, str],
    ops: Iterable[AlterOp],
    keys: Mapping[str, Key],
    inherited: Callable[[Key], tuple[str, ...] | None],
    kind: str = "",
    *,
    takes_unknown: bool = False,
) -> dict[str, str]:
    """The texts after the operations. inherited: the value to which an unset LIST is appended.
    kind: as for ``unknown_name``. takes_unknown: whether any name can be set.
    """
    changed = dict(current)
    seen = set()
    for name, operation, value in ops:
        if name in seen:
            raise ConfigError(name, "?" if value is None else value, "each setting once")
        seen.add(name)
        if operation == DELETE:  # COMPAT: also of a name that does not exist
            changed.pop(name, None)
            continue
        key = keys.get(name)
        if key is None and not (takes_unknown and operation == SET):
            raise unknown_name(name, value, keys, kind)
        text = _text(name, value)
        if key is None or operation == SET:
            changed[name] = text
        elif operation in (APPEND, SUBTRACT):
            _check_list(key, AlterOp(name, operation, text))
            before = split_list(changed[name]) if name in changed else inherited(key) or ()
            items = split_list(text)
            if operation == APPEND:
                present = set(before)
                after = [*before, *(item for item in items if item not in present)]
            else:
                gone = set(items)
                after = [item for item in before if item not in gone]
            changed[name] = ",".join(after)
        else:
            raise ConfigError(name, text, "one of the operations SET, DELETE, APPEND and SUBTRACT")
    return changed


def _check_list(key: Key, op: AlterOp) -> None:
    """Raise NotAList for an operation that only a list allows."""
    if op.operation in (APPEND, SUBTRACT) and key.type != LIST:
        shown = "(hidden)" if key.sensitive else _shown(op.value)
        raise NotAList(key.name, shown, "SET or DELETE; only a list can be added to")


def _shown(text: str | None) -> str:
    return "?" if text is None else ascii(text[:200])


def _check_dynamic(name: str, text: str | None, per_broker: bool) -> None:
    """Raise ConfigError unless the setting may be changed at run time at this level."""
    _check_name(name)
    key = BROKER_NAMES.get(name)
    if key is None:
        return
    shown = "(hidden)" if key.sensitive else _shown(text)
    if key.dynamic == READ_ONLY:
        allowed = "no change while the broker runs; set it in the file and restart"
        raise ConfigError(name, shown, allowed)
    if name in ONLY_OF_A_LISTENER:
        raise ConfigError(name, shown, f"a change for one listener, listener.name.<name>.{name}")
    if key.dynamic == PER_BROKER and not per_broker:
        raise ConfigError(name, shown, "a change for one broker, not for all")
    # Whoever may alter configs may not thereby name code, or have something fetched.
    if key.type == CLASS and text:
        raise ConfigError(
            name, shown, "no class while the broker runs; set it in the file and restart"
        )
    if name.endswith(".location") and text and "://" in text:
        raise ConfigError(name, shown, "the path of a file")


def _check_name(name: str) -> None:
    """Raise RefusedName if no configuration should have this name."""
    if len(name) > UNKNOWN_CHARS_MAX and name not in BROKER_NAMES:
        allowed = f"a name of at most {UNKNOWN_CHARS_MAX} characters"
    elif not name or not name.isprintable():
        allowed = "a name of printable characters"
    elif CONFIG_PROVIDERS in f".{name}.":
        allowed = "no config providers while the broker runs: they would name code"
    else:
        return
    raise RefusedName(_shown(name)[1:-1], "?", allowed)


def _check_unknown(changed: Mapping[str, str]) -> None:
    """Raise RefusedName if there are too many settings that nobody here knows."""
    unknown = {name: text for name, text in changed.items() if name not in BROKER_NAMES}
    if len(unknown) > UNKNOWN_MAX:
        allowed = f"at most {UNKNOWN_MAX} unknown settings"
    elif sum(len(name) + len(text) for name, text in unknown.items()) > UNKNOWN_TOTAL_CHARS_MAX:
        allowed = f"at most {UNKNOWN_TOTAL_CHARS_MAX} characters of unknown settings"
    else:
        return
    raise RefusedName(_shown(min(unknown))[1:-1], "?", allowed)


def _check_layer(changed: Mapping[str, str], config: BrokerConfig, per_broker: bool) -> None:
    layers = dict(config.layers())
    changed = {name: text for name, text in changed.items() if name in BROKER_NAMES}
    if per_broker:
        config.with_dynamic(layers[ConfigSource.DYNAMIC_DEFAULT_BROKER], changed)
    else:
        config.with_dynamic(changed, layers[ConfigSource.DYNAMIC_BROKER])


def _text(name: str, text: str | None) -> str:
    if text is None:
        raise ConfigError(name, "null", "a value")
    return text
