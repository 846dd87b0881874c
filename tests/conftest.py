"""What all tests share: the project's own pytest plugin, also where kbroker is not installed."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

from kbroker.testing import plugin, waiting

# A wait is over as soon as what it waits for is there: giving up earlier only fails tests of
# something that works, on a machine that stood still.
PATIENCE_S = 30.0

# A machine that stands still for a moment, or for five seconds, has found nothing. In CI one run is
# to be like the next; elsewhere each looks for something new.
settings.register_profile(
    "kbroker",
    deadline=None,
    derandomize="KBROKER_CI" in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("kbroker")


def pytest_configure(config: pytest.Config) -> None:
    """Load the plugin unless the installed package brought it."""
    waiting.PATIENCE_S = PATIENCE_S
    if not config.pluginmanager.has_plugin("kbroker"):
        config.pluginmanager.register(plugin, "kbroker")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """``--dist loadfile``, but tests/spark is like one file: one Spark session is enough."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class OneSparkSession(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            if nodeid.startswith("tests/spark/"):
                return "tests/spark"
            return str(super()._split_scope(nodeid))

    return OneSparkSession(config, log)
