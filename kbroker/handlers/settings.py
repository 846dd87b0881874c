"""The broker's settings as they are now: the file's, under the dynamic ones of the image."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from kbroker.config.loader import BrokerConfig
from kbroker.errors import ConfigError

if TYPE_CHECKING:
    from kbroker.workers.network import NetworkWorker

log = logging.getLogger(__name__)


class Settings:
    """Follows the image; cheap to ask for every request."""

    def __init__(self, worker: NetworkWorker) -> None:
        self._worker = worker
        self._config: BrokerConfig = worker.config
        self._version = -1
        self._layers: tuple[dict[str, str], dict[str, str]] = ({}, {})

    def current(self) -> BrokerConfig:
        """The configuration to serve a request with."""
        image = self._worker.image
        if image.version == self._version:
            return self._config
        self._version = image.version
        dynamic = image.broker_config
        own = str(self._worker.context.broker_id)
        layers = (dict(dynamic.get("default", {})), dict(dynamic.get(own, {})))
        if layers != self._layers:
            self._layers = layers
            try:
                self._config = self._worker.config.with_dynamic(*layers)
            except ConfigError as error:  # the controller checks them: another version's rules
                log.error("the dynamic settings of the cluster are not usable here: %s", error)
        return self._config
