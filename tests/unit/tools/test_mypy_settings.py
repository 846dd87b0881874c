"""tools/mypy_settings.py: a misspelt setting is an error of the type checker."""

from __future__ import annotations

from pathlib import Path

import pytest
from mypy import api

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = """\
from kbroker.config.loader import BrokerConfig

def size(config: BrokerConfig) -> int:
    text: str = config["log.segment.bytes"]
    config.is_set("log.segment.byte")
    config.of_listener("PLAINTEXT")["ssl.client.auth"]
    return int(config["log.segment.bites"])
"""


def test_misspelt_setting_and_its_wrong_type_are_found(tmp_path):
    program, settings = tmp_path / "program.py", tmp_path / "mypy.ini"
    program.write_text(PROGRAM)
    settings.write_text(f"[mypy]\nstrict = true\nplugins = {ROOT / 'tools' / 'mypy_settings.py'}\n")

    text, _, _ = api.run(
        [
            f"--config-file={settings}",
            f"--cache-dir={tmp_path}",
            "--follow-imports=silent",
            str(program),
        ]
    )

    lines = [line.partition(": error: ")[::2] for line in text.splitlines() if ": error: " in line]
    assert [(place.rpartition(":")[2], what.partition("  [")[0]) for place, what in lines] == [
        (
            "4",
            'Incompatible types in assignment (expression has type "int", variable has type "str")',
        ),
        ("5", "there is no setting log.segment.byte"),
        ("7", "there is no setting log.segment.bites"),
    ]
