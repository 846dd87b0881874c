"""The broker's effective configuration: the file it started with, joined with the cluster image."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from kbroker.config.loader import BrokerConfig, Source
from kbroker.errors import ConfigError

log = logging.getLogger(__name__)

FILE, DEFAULT = "file", "default"

Layers = Mapping[str, Mapping[str, str]]


def effective_config(started_with: BrokerConfig, layers: Layers, broker_id: int) -> BrokerConfig:
    """What counts now.

    layers: ``broker_config`` of the image. ``file`` is the whole file as it is since it was read
    again, without what takes a restart. The controller has checked them; if another version of
    kbroker did and they are not usable here, the broker goes on with what it started with.
    """
    static = layers.get(FILE)
    if static is None:
        static = dict(started_with.layers())[Source.STATIC_BROKER]
    try:
        return BrokerConfig(
            static,
            dynamic_default=layers.get(DEFAULT, {}),
            dynamic_broker=layers.get(str(broker_id), {}),
        )
    except (ConfigError, KeyError) as error:
        log.error("the stored settings of the broker are not used: %s", error)
        return started_with
