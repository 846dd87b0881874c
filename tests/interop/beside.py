"""Apache Kafka's tools beside the ones of bin/: same words, same broker, same output."""

from __future__ import annotations

import re
import struct
import subprocess
from collections.abc import Sequence
from difflib import unified_diff
from pathlib import Path

import pytest
from support.drivers.java import (
    FIRST_TEST_TIMEOUT_S,
    JVM_OPTIONS,
    SOURCES,
    classes_of,
    java_missing,
    libraries,
)

BIN = Path(__file__).resolve().parents[2] / "bin"
NEWEST = "4.3.0"
# The marks of all tests beside Kafka's tools.
BESIDE = [
    pytest.mark.interop,
    pytest.mark.java,
    pytest.mark.slow,
    pytest.mark.timeout(FIRST_TEST_TIMEOUT_S),
    pytest.mark.skipif(bool(java_missing()), reason=java_missing()),
]
# In names that either tool writes: its own, so that each acts on something of its own.
OWN = "@"


class KafkaTools:
    """A JVM that runs main classes of a version's tools, one after the other."""

    def __init__(self, version: str) -> None:
        classes = classes_of(version, "kafka-tools", [SOURCES / "tools" / "ToolRunner.java"])
        jars = libraries(version, "kafka-tools")
        command = ["java", *JVM_OPTIONS, "-cp", f"{classes}:{jars}/*", "ToolRunner"]
        self._jvm = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )

    def close(self) -> None:
        self._jvm.communicate(timeout=30)

    def run(self, main: str, *words: str, stdin: str = "") -> tuple[int, str, str]:
        """Exit code, stdout and stderr."""
        assert self._jvm.stdin is not None and self._jvm.stdout is not None
        texts = [text.encode() for text in (main, *words, stdin)]
        request = struct.pack(">i", len(texts) - 1)
        self._jvm.stdin.write(request + b"".join(struct.pack(">i", len(t)) + t for t in texts))
        self._jvm.stdin.flush()
        (code,) = struct.unpack(">i", self._jvm.stdout.read(4))
        return code, self._text(), self._text()

    def _text(self) -> str:
        assert self._jvm.stdout is not None
        (size,) = struct.unpack(">i", self._jvm.stdout.read(4))
        return self._jvm.stdout.read(size).decode()


class Ran:
    """stdout: without what may differ. code: the exit code."""

    def __init__(self, ran: tuple[int, str, str], masks: Sequence[str]) -> None:
        self.code, self.stdout, self.stderr = ran
        self.stdout = re.sub("-[jk]-", f"-{OWN}-", self.stdout)
        for mask in masks:
            self.stdout = re.sub(mask, "MASKED", self.stdout)


def in_any_order(text: str) -> str:
    """Sorted lines, without the space before the first of a list; an error without its trace."""
    error = re.search("^Error while executing .*$", text, re.MULTILINE)
    return error[0] if error else "\n".join(sorted(line.lstrip(" ") for line in text.split("\n")))


class Beside:
    """Runs a tool of both; a test compares what they print."""

    def __init__(self, bootstrap: str, version: str = NEWEST) -> None:
        self.bootstrap = bootstrap
        self._kafka = KafkaTools(version)

    def close(self) -> None:
        self._kafka.close()

    def kafka(self, main: str, *words: str, stdin: str = "", masks: Sequence[str] = ()) -> Ran:
        own = [word.replace(f"-{OWN}-", "-j-") for word in words]
        return Ran(self._kafka.run(main, *own, stdin=stdin), masks)

    def ours(self, name: str, *words: str, stdin: str = "", masks: Sequence[str] = ()) -> Ran:
        own = [word.replace(f"-{OWN}-", "-k-") for word in words]
        command = [str(BIN / f"{name}.sh"), *own]
        done = subprocess.run(command, input=stdin.encode(), capture_output=True, timeout=60)
        texts = done.returncode, done.stdout.decode(), done.stderr.decode()
        return Ran(texts, masks)

    def same(
        self,
        name: str,
        main: str,
        *words: str,
        stdin: str = "",
        bootstrap: bool = True,
        masks: Sequence[str] = (),
        ordered: bool = True,
    ) -> Ran:
        """What ours prints, which is what Kafka's does; unless ``ordered``, in any order."""
        where = ("--bootstrap-server", self.bootstrap) if bootstrap else ()
        theirs = self.kafka(main, *words, *where, stdin=stdin, masks=masks)
        ours = self.ours(name, *words, *where, stdin=stdin, masks=masks)
        said = f"{name} {' '.join(words)}"
        if not ordered:
            for ran in (theirs, ours):
                ran.stdout = in_any_order(ran.stdout)
        if ours.stdout != theirs.stdout:
            lines = [ran.stdout.splitlines(keepends=True) for ran in (theirs, ours)]
            differing = "".join(unified_diff(*lines, "Kafka's", "ours"))
            pytest.fail(f"{said}:\n{differing}\n{ours.stderr}\n{theirs.stderr}", pytrace=False)
        assert ours.code == theirs.code, f"{said}:\n{ours.stderr}\n{theirs.stderr}"
        return ours
