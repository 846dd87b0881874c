"""constraints.txt: a version of each package that pyproject.toml names, without known faults."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# Extras of things that CI does not install everywhere.
ELSEWHERE = {"kerberos", "java", "perf"}
# The newest with a known fault: names of hosts and forms, requests smuggled, OpenSSL in wheels,
# tokens that pass or end a check, recursion.
FAULTY = {
    "starlette": "1.3.0",
    "h11": "0.15.0",
    "cryptography": "48.0.0",
    "pyjwt": "2.14.0",
    "protobuf": "5.29.5",
}


def needed(of: dict[str, list[str]]) -> list[Requirement]:
    every = [text for extra, texts in of.items() if extra not in ELSEWHERE for text in texts]
    return [one for one in map(Requirement, every) if one.name != "kbroker"]


def pinned() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    found = (line.split("==") for line in lines if not line.startswith("#"))
    return {canonicalize_name(name): version for name, version in found}


EXTRAS = needed(PROJECT["optional-dependencies"])
RUN = needed({"": PROJECT["dependencies"]})


@pytest.mark.parametrize("one", [*RUN, *EXTRAS], ids=lambda one: one.name)
def test_package_is_pinned_to_a_version_that_the_project_takes(one: Requirement) -> None:
    if one.marker is None or one.marker.evaluate():
        assert one.specifier.contains(pinned()[canonicalize_name(one.name)])


@pytest.mark.parametrize("name", FAULTY)
def test_version_with_a_known_fault_is_not_taken(name: str) -> None:
    """Not with uvicorn's own range either: it takes any h11."""
    (found,) = [one for one in [*RUN, *EXTRAS] if canonicalize_name(one.name) == name]
    assert not found.specifier.contains(FAULTY[name])


def test_ci_installs_these_versions() -> None:
    assert 'PIP_CONSTRAINT="$PWD/constraints.txt"' in (ROOT / ".ci/run").read_text()
