"""The line at the end of a test run: the tests left out, and what they need."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.running.left_out import PACKAGES, left_out

pytestmark = pytest.mark.unit

README = Path(__file__).resolve().parents[3] / "README.md"


def test_run_that_left_nothing_out_says_nothing() -> None:
    assert left_out([]) == ""


def test_missing_programs_are_named_by_their_packages_and_counted() -> None:
    reasons = ["Skipped: not installed: java, javac, mvn"] * 3 + ["Skipped: kcat is not installed"]

    assert left_out(reasons) == (
        "left out: 4 tests. What brings them: "
        "apt-get install default-jdk-headless (3) kcat (1) maven (3)"
    )


def test_what_only_root_may_do_is_counted() -> None:
    reasons = ["mounting needs root", "only root can give files away"]

    assert left_out(reasons) == "left out: 2 tests. What brings them: be root (2)"


def test_maven_central_out_of_reach_is_one_reason() -> None:
    reasons = ["Skipped: Maven Central cannot be reached"] * 3

    assert left_out(reasons) == "left out: 3 tests. What brings them: reach Maven Central (3)"


def test_other_reasons_are_told_as_they_are() -> None:
    reasons = ["this kernel cannot", "mkfs.ext4 is not installed", "this kernel cannot"]

    assert left_out(reasons) == (
        "left out: 3 tests. What brings them: apt-get install e2fsprogs (1); this kernel cannot (2)"
    )


def test_packages_are_those_that_readme_names() -> None:
    named = set(re.findall("[a-z0-9-]+", README.read_text()))

    assert {name for names in PACKAGES.values() for name in names.split()} <= named
