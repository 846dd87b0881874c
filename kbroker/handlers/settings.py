"""The broker's settings as they are now: the file's, under the dynamic ones of the image."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.cluster.settings import effective_config
from kbroker.config.loader import BrokerConfig

if TYPE_CHECKING:
    from kbroker.workers.network import NetworkWorker


class Settings:
    """Follows the image; cheap to ask for every request."""

    def __init__(self, worker: NetworkWorker) -> None:
        self._worker = worker
        self._config: BrokerConfig = worker.config
        self._version = -1
        self._layers: dict[str, dict[str, str]] = {}

    def current(self) -> BrokerConfig:
        """The configuration to serve a request with."""
        image = self._worker.image
        if image.version == self._version:
            return self._config
        self._version = image.version
        if image.broker_config != self._layers:
            self._layers = dict(image.broker_config)
            broker_id = self._worker.context.broker_id
            self._config = effective_config(self._worker.config, self._layers, broker_id)
        return self._config
