"""Schemathesis reads the OpenAPI document, and tries what it allows and what it does not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.surfaces.console_calls import got

from kbroker.testing import Broker

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(900)]

# BOUND: of each operation and kind of data, what is made up; about 3,000 requests in all, in two
# to four minutes.
EXAMPLES_MAX = 20
# What the document cannot say: that a topic has to exist, or that two values go together.
NOT_CHECKED = ("positive_data_acceptance",)


def test_every_operation_is_as_its_description_says(tmp_path: Path) -> None:
    program = Path(sys.executable).with_name("schemathesis")
    with Broker() as broker:
        got(broker, "/topics", {"name": "orders", "partitions": 2})
        got(broker, "/topics/orders/messages", {"key": "k", "value": "v"})

        done = subprocess.run(
            [program, "run", f"{broker.metrics_url}/api/v1/openapi.json", "--url",
             f"{broker.metrics_url}/api/v1", "--checks", "all", "--exclude-checks",
             ",".join(NOT_CHECKED), "--max-examples", str(EXAMPLES_MAX), "--seed", "1",
             "--generation-database", "none", "--workers", "2", "--request-timeout", "30",
             "--no-color"],
            cwd=tmp_path, capture_output=True, text=True, timeout=800,
        )  # fmt: skip

    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
