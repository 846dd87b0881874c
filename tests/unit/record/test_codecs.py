"""Extensions take the codecs from ``kbroker.record``, which registers them when it is imported."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import kbroker.record
from kbroker.record import compression
from kbroker.record.builder import BatchBuilder

pytestmark = pytest.mark.unit

# Imports of extensions that may read or write compressed batches.
OF_BATCHES = re.compile(r"^from kbroker\._ext\.(?!base|shared|sockets)", re.MULTILINE)


def test_batch_is_not_taken_for_a_damaged_one_while_there_are_no_codecs() -> None:
    builder = BatchBuilder(codec=compression.GZIP)
    builder.append(b"value")
    script = (
        "from kbroker._ext.record.record_batch import check_batch\n"
        "from kbroker.errors import InvariantError\n"
        f"data = {builder.build()!r}\n"
        "try:\n    check_batch(data, 1000)\n"
        "except InvariantError as error:\n    print(error)\n"
        "import kbroker.record\n"
        "print(check_batch(data, 1000).record_count)\n"
    )

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)

    assert done.stdout == "kbroker.record, which has the codecs, is not imported\n1\n", done.stderr


def test_every_package_that_uses_extensions_of_batches_imports_the_codecs() -> None:
    root = Path(kbroker.record.__file__).parents[1]
    texts = {path: path.read_text(encoding="utf-8") for path in root.rglob("*.py")}
    packages = {
        path.relative_to(root).parts[0] for path, text in texts.items() if OF_BATCHES.search(text)
    }

    without = {
        name
        for name in packages - {"record"}
        if "\nimport kbroker.record " not in texts[root / name / "__init__.py"]
    }

    assert packages >= {"client", "storage", "workers"}
    assert without == set()
