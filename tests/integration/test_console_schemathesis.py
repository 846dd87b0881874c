"""Schemathesis reads the OpenAPI document, and tries what it allows and what it does not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.surfaces.console_calls import got

from kbroker.testing import Broker

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(900)]

# BOUND: of each operation and kind of data, what is made up; about 3,000 requests in all, in one to
# four minutes.
EXAMPLES_MAX = 20
# BOUND: a topic may be asked to have thousands of partitions.
SETTINGS = {"partition.table.slots": 256}
# What the document cannot say: that a topic has to exist, or that two values go together.
NOT_CHECKED = ("positive_data_acceptance",)
# A head that is too large is refused before it is read. 503 is what a busy machine may answer.
CONFIG = """
[checks.negative_data_rejection]
expected-statuses = [400, 401, 403, 404, 405, 406, 409, 413, 415, 431]
[checks.not_a_server_error]
expected-statuses = ["2xx", "3xx", "4xx", "503"]
"""


def test_every_operation_is_as_its_description_says(tmp_path: Path) -> None:
    program = Path(sys.executable).with_name("schemathesis")
    config = tmp_path / "schemathesis.toml"
    config.write_text(CONFIG)
    with Broker(SETTINGS) as broker:
        got(broker, "/topics", {"name": "orders", "partitions": 2})
        got(broker, "/topics/orders/messages", {"key": "k", "value": "v"})

        url = f"{broker.metrics_url}/api/v1"
        done = subprocess.run(
            [program, "--config-file", config, "run", f"{url}/openapi.json", "--url", url,
             "--checks", "all", "--exclude-checks", ",".join(NOT_CHECKED),
             "--max-examples", str(EXAMPLES_MAX), "--seed", "1", "--generation-database", "none",
             "--workers", "2", "--request-timeout", "60", "--max-response-time", "60",
             "--no-color"],
            cwd=tmp_path, capture_output=True, text=True, timeout=800,
        )  # fmt: skip

    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
