"""``make release``: what it refuses, and that its checks see what they are for."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path

import pytest
from unit.tools.test_wheels import TARGET, wheel

import kbroker
from tools import release, wheels
from tools.bare import Failed
from tools.cpython_headers import RELEASES

pytestmark = pytest.mark.unit


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one commit."""
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    for words in (["init", "-q"], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q",
                                   "--allow-empty", "-m", "first"]):  # fmt: skip
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    monkeypatch.setattr(release, "ROOT", tmp_path)
    monkeypatch.setattr(release, "DIST", tmp_path / "dist")
    return tmp_path


def test_changes_that_no_commit_has_are_refused_or_said(checkout: Path) -> None:
    clean = release.commit_of(False)
    (checkout / "new").write_text("")

    with pytest.raises(Failed, match=r"has changes .*new.*: commit them"):
        release.commit_of(False)

    assert release.commit_of(True) == f"{clean} with 1 changed files"


def test_changelog_begins_with_what_is_released() -> None:
    assert release.check_changelog("# Changelog\n\n## Unreleased\n", "1.0") == "Unreleased"
    assert release.check_changelog("## 1.0 (2030)\n## 0.9\n", "1.0") == "1.0 (2030)"
    for text in ("", "## 0.9\n## Unreleased\n"):
        with pytest.raises(Failed, match=r"not with 1\.0 or Unreleased"):
            release.check_changelog(text, "1.0")


def test_sums_are_those_of_the_files(tmp_path: Path) -> None:
    (tmp_path / "kbroker-1-py3-none-any.whl").write_bytes(b"a wheel")
    (tmp_path / "notes.txt").write_bytes(b"something else")

    lines = release.write_sums(tmp_path)

    assert lines == [f"{hashlib.sha256(b'a wheel').hexdigest()}  kbroker-1-py3-none-any.whl"]
    assert (tmp_path / "SHA256SUMS").read_text() == f"{lines[0]}\n"


def test_command_says_what_it_did_and_uploads_nothing(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (checkout / "CHANGELOG.md").write_text("## Unreleased\n")

    def sdist(into: Path) -> Path:
        path = into / "kbroker-1.tar.gz"
        path.write_bytes(b"sources")
        return path

    def make_all(versions: object, machines: object, folders: object, into: Path) -> object:
        return {TARGET: wheel(into / "kbroker-1.whl")}, {"3.14": "no mvn"}

    monkeypatch.setattr(release, "make_sdist", sdist)
    monkeypatch.setattr(wheels, "make_all", make_all)
    monkeypatch.setattr(wheels, "check", lambda path, target: "needs glibc 2.17")
    monkeypatch.setattr(release, "check_download", lambda target, path, dist: None)

    assert release.main(["--dirty", "--no-try"]) == 0

    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith(f"kbroker {kbroker.__version__} of commit ")
    assert "kbroker-1.whl: " in said[2] and said[2].endswith("needs glibc 2.17")
    assert "CPython 3.14: no wheel (no mvn)" in said
    assert said[-1].startswith("nothing was uploaded")
    assert (checkout / "dist" / "RELEASE.txt").read_text().splitlines() == said


def test_unclean_tree_ends_with_1_and_leaves_dist_as_it_is(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (checkout / "dist").mkdir()
    (checkout / "dist" / "kbroker-0.whl").write_text("")

    assert release.main([]) == 1

    assert "commit them, or --dirty" in capsys.readouterr().out
    assert (checkout / "dist" / "kbroker-0.whl").exists()


def test_all_versions_that_the_project_supports_are_built() -> None:
    text = (Path(release.__file__).parents[1] / "pyproject.toml").read_text()

    assert all(f"Programming Language :: Python :: {version}" in text for version in RELEASES)
