"""Maven Central out of reach is told apart from what does not exist there, and asked for once."""

from __future__ import annotations

from pathlib import Path

import pytest

from perf import maven
from perf.kafka_distribution import kafka_libraries
from perf.maven import MavenUnreachable, fetch_jar, run_maven

pytestmark = pytest.mark.unit

OUT_OF_REACH = (
    "[ERROR] Could not transfer artifact x:y:pom:1 from/to central: Unknown host repo",
    "[ERROR] Could not transfer artifact x:y:pom:1 from/to mirror: status code: 403, Forbidden",
    "[ERROR] Cannot access central in offline mode and the artifact x has not been downloaded",
)


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MavenUnreachable, "is_known", False)


def mvn(place: Path, says: str) -> list[str]:
    """A Maven that fails with these words, and counts its calls."""
    program = place / "mvn"
    program.write_text(f"#!/bin/sh\necho >> {place}/calls\necho '{says}'\nexit 1\n")
    program.chmod(0o755)
    return [str(program)]


@pytest.mark.parametrize("says", OUT_OF_REACH)
def test_repository_that_does_not_answer_is_asked_once(tmp_path: Path, says: str) -> None:
    command = mvn(tmp_path, says)
    for _ in range(2):
        with pytest.raises(MavenUnreachable, match="reached for kafka 1"):
            run_maven("kafka 1", command, {"PATH": "/bin"})
    assert (tmp_path / "calls").read_text() == "\n"


def test_artifact_that_does_not_exist_is_another_error(tmp_path: Path) -> None:
    command = mvn(tmp_path, "[ERROR] Could not find artifact x:y:jar:99 in central")
    with pytest.raises(RuntimeError, match="Could not find") as raised:
        run_maven("kafka 99", command, {"PATH": "/bin"})
    assert not isinstance(raised.value, MavenUnreachable)


def test_what_is_there_needs_no_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MavenUnreachable, "is_known", True)
    (tmp_path / "complete").touch()
    assert kafka_libraries(tmp_path) == tmp_path / "libs"
    (tmp_path / "a-1.jar").touch()
    assert fetch_jar("g:a:1", tmp_path) == tmp_path / "a-1.jar"
    with pytest.raises(MavenUnreachable):
        maven.fetch_jar("g:b:1", tmp_path)
