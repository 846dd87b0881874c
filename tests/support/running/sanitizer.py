"""Runs commands under the sanitizers (``make sanitize``); what cannot be tested so, and how long
it may take.

    python tests/support/running/sanitizer.py build/sanitizer COMMAND...

runs the command and fails if it does, or if anything is found: ``build/sanitizer.<pid>`` are the
findings in memory, ``build/sanitizer.ub.<pid>`` those of undefined behaviour. The last lines are
the verdict, with each finding once.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

SANITIZED = "libasan" in os.environ.get("LD_PRELOAD", "")

# Factor for all time limits of tests: the code runs at a fraction of its speed.
TIME_FACTOR = 5 if SANITIZED else 1

# The line that names a finding in its file.
_FINDING = re.compile(r"^(?:SUMMARY: (?P<memory>.+)|(?P<undefined>.+: runtime error: .+))$", re.M)

_NAMES = ("LD_PRELOAD", "ASAN_OPTIONS", "UBSAN_OPTIONS", "KBROKER_UBSAN_LOG", "PYTHONMALLOC")
# For programs of ours that a test gives an environment of its own.
ENVIRONMENT = {name: os.environ[name] for name in _NAMES if SANITIZED and name in os.environ}

# Its allocator keeps what is freed for a while, and each byte has a shadow.
measures_memory = pytest.mark.skipif(SANITIZED, reason="the sanitizer needs memory of its own")

COMPILER = "gcc"
FLAGS = ("-fsanitize=address,undefined", "-fsanitize-recover=address", "-fno-omit-frame-pointer")


def environment(reports: Path) -> dict[str, str]:
    """Variables for a program with sanitized extensions; findings go to ``reports``.*.

    The folder of ``reports`` gets a library, too. libstdc++ is there for the exceptions of other
    people's extensions. Python's own allocator would hide what is read beyond a small object.
    """
    source = Path(__file__).with_name("sanitizer_reports.c")
    library = reports.with_name("libreports.so")
    command = [COMPILER, "-shared", "-fPIC", "-O2", "-o", str(library), str(source), "-ldl"]
    subprocess.run(command, check=True)
    preloaded = (_path_of("libasan.so"), _path_of("libstdc++.so"), str(library))
    asan = "detect_leaks=0:halt_on_error=0:allocator_may_return_null=1"
    return {
        "LD_PRELOAD": " ".join(preloaded),
        "ASAN_OPTIONS": f"{asan}:log_path={reports}",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "KBROKER_UBSAN_LOG": f"{reports}.ub",
        "PYTHONMALLOC": "malloc",
    }


def _path_of(library: str) -> str:
    command = [COMPILER, f"-print-file-name={library}"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def found(reports: Path) -> list[Path]:
    """The files with findings."""
    return sorted(reports.parent.glob(f"{reports.name}.*"))


def main(reports: Path, command: list[str]) -> int:
    """Run the command; 0 if it succeeds without findings."""
    for old in found(reports):
        old.unlink()
    code = subprocess.run(command, env=os.environ | environment(reports), check=False).returncode
    print(verdict(code, found(reports)))
    return code or int(bool(found(reports)))


def verdict(code: int, files: list[Path]) -> str:
    """What a run came to: each finding with its number and the first of its files, the most
    frequent first; and the end of the command.
    """
    numbers: Counter[str] = Counter()
    first_in: dict[str, Path] = {}
    for path in files:
        text = path.read_text(errors="replace")
        names = [match["memory"] or match["undefined"] for match in _FINDING.finditer(text)]
        for name in names or ["a report without a summary"]:
            numbers[name] += 1
            first_in.setdefault(name, path)
    lines = [f"{number} x {name}: {first_in[name]}" for name, number in numbers.most_common()]
    end = "the command succeeded" if code == 0 else f"the command failed with exit code {code}"
    if not files:
        return f"sanitizers: nothing found; {end}"
    lines.append(f"sanitizers: FOUND {numbers.total()} in {len(files)} processes; {end}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve(), sys.argv[2:]))
