"""What a request for settings may cost the controller; what it does is tested with its process."""

from __future__ import annotations

from typing import Any

import pytest
from doubles.counting_text import CountingText

from kbroker.config.loader import BrokerConfig
from kbroker.config.resource_types import GROUP
from kbroker.controller.config_admin import ConfigAdmin
from kbroker.controller.state import ClusterState
from kbroker.errors import ErrorCode
from kbroker.ipc.rpc import run

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("operation", ["alter_configs", "incremental_alter_configs"])
def test_resources_of_a_request_are_not_compared_with_each_other(
    tmp_path: Any, operation: str
) -> None:
    """10,000 groups held up the controller for two seconds, and it grew with the square."""
    nobody: Any = None
    admin = ConfigAdmin(nobody, ClusterState(0, "c"), nobody, BrokerConfig({}), str(tmp_path))
    names = [CountingText(f"g{number}") for number in range(300)]
    names += [CountingText("g0")]
    resources = [{"type": GROUP, "name": name, "configs": []} for name in names]
    CountingText.compared = 0

    outcome = run(getattr(admin, operation)(None, resources, True))

    codes = [result["error"] for result in outcome.value]
    assert [n for n, code in enumerate(codes) if code == ErrorCode.INVALID_REQUEST] == [0, 300]
    assert CountingText.compared <= 10 * len(names)


def test_file_that_cannot_be_noted_for_the_next_controller_is_not_used(tmp_path: Any) -> None:
    """A full runtime directory: the controller died of a SIGHUP."""
    nobody: Any = None
    missing = str(tmp_path / "no" / "directory")
    admin = ConfigAdmin(nobody, ClusterState(0, "c"), nobody, BrokerConfig({}), missing)
    before = admin.config
    path = tmp_path / "server.properties"
    path.write_text("log.retention.ms=1234567\n")

    assert not admin.reload(str(path), {})

    assert admin.config is before
