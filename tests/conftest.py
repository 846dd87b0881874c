"""What all tests share: the project's own pytest plugin, also where kbroker is not installed."""

from __future__ import annotations

import pytest

from kbroker.testing import plugin


def pytest_configure(config: pytest.Config) -> None:
    """Load the plugin unless the installed package brought it."""
    if not config.pluginmanager.has_plugin("kbroker"):
        config.pluginmanager.register(plugin, "kbroker")
