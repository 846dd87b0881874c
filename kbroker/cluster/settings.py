"""The broker's effective configuration: the file it started with, joined with the cluster image."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from kbroker.cluster.stored_passwords import decoded, encoder_of, is_password
from kbroker.config.broker_keys import BROKER_NAMES
from kbroker.config.dynamic import ONLY_OF_A_LISTENER
from kbroker.config.loader import BrokerConfig, ConfigSource
from kbroker.errors import ConfigError

logger = logging.getLogger(__name__)

FILE, DEFAULT = "file", "default"

Layers = Mapping[str, Mapping[str, str]]


def effective_config(started_with: BrokerConfig, layers: Layers, broker_id: int) -> BrokerConfig:
    """The settings in effect now.

    layers: ``broker_config`` of the image. ``file`` is the whole file as it is since it was read
    again, without what takes a restart. The controller has checked the others, but perhaps with
    another file, or in another version of kbroker: one that does not go with this broker is left
    out, and all others count.
    """
    static = layers.get(FILE)
    if static is None:
        static = dict(started_with.layers())[ConfigSource.STATIC_BROKER]
    default, own = _known(layers.get(DEFAULT, {})), _known(layers.get(str(broker_id), {}))
    own, default = _of_listeners(own), _of_listeners(default)
    if any(map(is_password, default)):
        logger.error("Per-broker configs defined at default cluster level will be ignored")
        default = {name: text for name, text in default.items() if not is_password(name)}
    if any(map(is_password, own)):
        own = decoded(own, encoder_of(started_with))
    if [static, default, own] == [layer for _, layer in started_with.layers()]:
        return started_with  # which the processes of a broker share
    while True:
        try:
            return _joined(static, default, own)
        except ConfigError as rejection:
            name = _culprit(static, default, own, rejection)
            if name is None:
                logger.error("ignoring the stored broker settings: %s", rejection)
                return started_with
            logger.error("ignoring the stored broker setting %s: %s", name, rejection)
        del (own if name in own else default)[name]


def _known(layer: Mapping[str, str]) -> dict[str, str]:
    """Without names that mean nothing here: whoever stored them was told."""
    return {name: text for name, text in layer.items() if name in BROKER_NAMES}


def _of_listeners(layer: dict[str, str]) -> dict[str, str]:
    """Without stores that no listener is named for. COMPAT: Kafka's text."""
    if ONLY_OF_A_LISTENER.isdisjoint(layer):
        return layer
    logger.error(
        "Security configs can be dynamically updated only using listener prefix, base configs will"
        " be ignored: %s",
        ", ".join(sorted(ONLY_OF_A_LISTENER & layer.keys())),
    )
    return {name: text for name, text in layer.items() if name not in ONLY_OF_A_LISTENER}


def _joined(
    static: Mapping[str, str], default: Mapping[str, str], own: Mapping[str, str]
) -> BrokerConfig:
    """Raises ConfigError if these layers do not form a valid configuration."""
    return BrokerConfig(static, dynamic_default=default, dynamic_broker=own)


def _culprit(
    static: Mapping[str, str],
    default: Mapping[str, str],
    own: Mapping[str, str],
    rejection: ConfigError,
) -> str | None:
    """The stored setting to leave out: the rejected one, or one that it conflicts with."""
    if rejection.key in own or rejection.key in default:
        return rejection.key
    for name in sorted({*own, *default}):
        without = [{k: v for k, v in layer.items() if k != name} for layer in (default, own)]
        try:
            _joined(static, *without)
        except ConfigError as left:
            if left.key == rejection.key:
                continue
        return name
    return None
