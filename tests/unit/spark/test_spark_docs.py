"""docs/spark.md describes the options."""

from pathlib import Path

import pytest

from kbroker.spark.options.option_table import OPTIONS

pytestmark = pytest.mark.unit

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "spark.md"


@pytest.mark.parametrize("option", OPTIONS, ids=lambda one: one.name)
def test_document_has_a_row_for_the_option(option):
    own = " (own)" if option.own else ""
    uses, default = ", ".join(option.uses.split()), option.default or "-"

    expected = f"| `{option.name}`{own} | {uses} | {default} | {option.text} |"
    assert expected in DOCUMENT.read_text(encoding="utf-8").splitlines()
