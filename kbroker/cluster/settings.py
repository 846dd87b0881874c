"""The broker's configuration as it is now, from the file it started with and the cluster image."""

from __future__ import annotations

from collections.abc import Mapping

from kbroker.config.loader import BrokerConfig, Source

FILE, DEFAULT = "file", "default"

Layers = Mapping[str, Mapping[str, str]]


def effective_config(started_with: BrokerConfig, layers: Layers, broker_id: int) -> BrokerConfig:
    """What counts now. Raises ConfigError.

    layers: ``broker_config`` of the image. ``file`` is the whole file as it is since it was read
    again, without what takes a restart.
    """
    static = layers.get(FILE)
    if static is None:
        static = dict(started_with.layers())[Source.STATIC_BROKER]
    return BrokerConfig(
        static,
        dynamic_default=layers.get(DEFAULT, {}),
        dynamic_broker=layers.get(str(broker_id), {}),
    )
