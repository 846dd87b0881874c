"""What the sanitizers find is in files, whichever process it is in: the standard error of a broker
is nobody's.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.running import sanitizer

pytestmark = [
    pytest.mark.unit,
    pytest.mark.skipif(not shutil.which("gcc"), reason="a C compiler is not installed"),
]

FAULTS = """
#include <stdlib.h>
int overflow(int a) { return a + 0x7fffffff; }
int beyond(int at) {
    volatile char *bytes = malloc(4);
    int read = bytes[at];
    free((void *)bytes);
    return read;
}
"""
# In a child: a worker of a broker is a fork, too.
PROGRAM = """
import ctypes, os, sys
faults = ctypes.CDLL(sys.argv[1])
if os.fork():
    os.wait()
else:
    getattr(faults, sys.argv[2])(int(sys.argv[3]))
"""


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("faults")
    source, library = folder / "faults.c", folder / "faults.so"
    source.write_text(FAULTS)
    command = [sanitizer.COMPILER, "-shared", "-fPIC", *sanitizer.FLAGS, "-o", library, source]
    subprocess.run(command, check=True, env=os.environ | {"LD_PRELOAD": ""})
    return library


@pytest.mark.parametrize(
    ("function", "argument", "kind", "words"),
    [
        ("overflow", 5, "ub.", ["signed integer overflow", "5 + 2147483647", "in overflow"]),
        ("beyond", 4, "", ["heap-buffer-overflow", "in beyond"]),
    ],
)
def test_finding_of_a_child_process_is_in_a_file_and_fails_the_run(
    faults: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    function: str,
    argument: int,
    kind: str,
    words: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("LD_PRELOAD", "")
    reports = tmp_path / "report"
    program = [sys.executable, "-c", PROGRAM, str(faults), function, str(argument)]

    code = sanitizer.main(reports, program)

    texts = {path: path.read_text() for path in sanitizer.found(reports)}
    of_kind = [t for path, t in texts.items() if path.name.removeprefix(f"report.{kind}").isdigit()]
    assert code == 1
    assert [word for word in words if word not in of_kind[0]] == [], texts
    *named, last = capsys.readouterr().out.splitlines()
    assert last == "sanitizers: FOUND 1 in 1 processes; the command succeeded"
    assert [word for word in words[:1] if word not in named[0]] == []


def test_run_without_findings_succeeds_although_an_earlier_one_failed(
    faults: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("LD_PRELOAD", "")
    reports = tmp_path / "report"
    (tmp_path / "report.1").write_text("an old finding")
    program = [sys.executable, "-c", PROGRAM, str(faults), "overflow", "-1"]

    code = sanitizer.main(reports, program)

    assert (code, sanitizer.found(reports)) == (0, [])
    assert capsys.readouterr().out == "sanitizers: nothing found; the command succeeded\n"


def test_same_finding_of_many_processes_is_named_once(tmp_path: Path) -> None:
    memory = "SUMMARY: AddressSanitizer: heap-use-after-free in take"
    undefined = "ext/one.c:7:3: runtime error: signed integer overflow: 5 + 6"
    files = [tmp_path / "report.1", tmp_path / "report.ub.2", tmp_path / "report.ub.3"]
    for path, texts in zip(files, ([memory], [undefined, undefined], [undefined]), strict=True):
        path.write_text("".join(f"words\n{text}\nmore\n" for text in texts))

    assert sanitizer.verdict(2, files).splitlines() == [
        f"3 x {undefined}: {files[1]}",
        f"1 x AddressSanitizer: heap-use-after-free in take: {files[0]}",
        "sanitizers: FOUND 4 in 3 processes; the command failed with exit code 2",
    ]
