"""``make wheels``: what each wheel is for, and that one which is not what it must be is found."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from tools import cpython_headers, wheels
from tools.bare import Failed
from tools.cpython_headers import Headers, Missing, headers_of, unpack, version_in
from tools.wheels import ELF_MACHINES, Target

pytestmark = pytest.mark.unit

TARGET = Target("3.12", "aarch64")
PATCHLEVEL = "#define PY_MAJOR_VERSION 3\n#define PY_MINOR_VERSION 12\n#define PY_MICRO_VERSION 1\n"


def elf(machine: str) -> bytes:
    return b"\x7fELF" + bytes(14) + ELF_MACHINES[machine].to_bytes(2, "little") + bytes(44)


def headers(place: Path) -> Path:
    place.mkdir(parents=True)
    (place / "patchlevel.h").write_text(PATCHLEVEL)
    (place / "Python.h").touch()
    (place / "pyconfig.h").touch()
    return place


def wheel(path: Path, machine: str = "aarch64", without: str = "", **more: bytes) -> Path:
    names = {f"{source.relative_to('ext').with_suffix('')}{TARGET.suffix}": elf(machine)
             for source in wheels.relative_sources()}  # fmt: skip
    names |= {f"kbroker/samples/{one.name}": b"" for one in (wheels.ROOT / "config").iterdir()}
    with zipfile.ZipFile(path, "w") as packed:
        for name, contents in (names | more).items():
            if not without or without not in name:
                packed.writestr(name, contents)
    return path


def test_target_names_its_wheel_and_its_extensions() -> None:
    assert TARGET.tag == "cp312-cp312-manylinux_2_28_aarch64"
    assert TARGET.suffix == ".cpython-312-aarch64-linux-gnu.so"


def test_environment_builds_for_the_target_with_its_headers_first() -> None:
    found = wheels.environment_of(TARGET, Headers("3.12", Path("/headers"), "test"), "/zig")

    assert found["CC"] == "/zig cc -target aarch64-linux-gnu.2.28"
    assert found["LDSHARED"].startswith(f"{found['CC']} -shared")
    assert found["CFLAGS"].split()[0] == "-I/headers"
    assert found["SETUPTOOLS_EXT_SUFFIX"] == TARGET.suffix
    assert found["KBROKER_WHEEL_TAG"] == TARGET.tag


def test_whole_wheel_has_no_problems(tmp_path: Path) -> None:
    assert wheels.problems(wheel(tmp_path / "a.whl"), TARGET) == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"machine": "x86_64"}, "is for another machine"),
        ({"without": "crc32c"}, "lacks kbroker/_ext/base/crc32c.cpython-312"),
        ({"without": "Containerfile"}, "lacks kbroker/samples/Containerfile"),
        ({"kbroker/_ext/a.pyx": b""}, "has sources: kbroker/_ext/a.pyx"),
        ({"kbroker/a.so": b"!<arch>"}, "kbroker/a.so is no ELF file"),
    ],
)
def test_wheel_that_is_not_what_it_must_be_is_found(
    tmp_path: Path, options: dict[str, str], said: str
) -> None:
    found = wheels.problems(wheel(tmp_path / "a.whl", **options), TARGET)

    assert any(said in text for text in found), found


@pytest.mark.parametrize(
    ("said", "glibc"),
    [
        (
            'a.whl is consistent with the following platform tag:\n"manylinux_2_17_x86_64".\n\nThe '
            'wheel references ... "manylinux_2_39_x86_64"',
            (2, 17),
        ),
        ('is consistent with the following platform\ntag: "manylinux_2_34_aarch64".', (2, 34)),
        ('is consistent with the following platform tag: "linux_x86_64".', None),
    ],
)
def test_oldest_glibc_is_read_from_what_auditwheel_says(
    said: str, glibc: tuple[int, int] | None
) -> None:
    assert wheels.oldest_platform(said) == glibc


@pytest.mark.parametrize(
    ("glibc", "passes"), [("2_17", True), ("2_28", True), ("2_29", False), ("2_34", False)]
)
def test_wheel_that_needs_a_newer_glibc_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, glibc: str, passes: bool
) -> None:
    program = tmp_path / "python"
    text = f'following platform tag: "manylinux_{glibc}_aarch64"'
    program.write_text(f"#!/bin/sh\necho '{text}'\n")
    program.chmod(0o755)
    monkeypatch.setattr(wheels.sys, "executable", str(program))
    path = wheel(tmp_path / "a.whl")

    if passes:
        assert wheels.check(path, TARGET) == f"needs glibc {glibc.replace('_', '.')}"
    else:
        with pytest.raises(Failed, match="needs a newer glibc"):
            wheels.check(path, TARGET)


def test_headers_are_taken_where_they_are_and_whole(tmp_path: Path) -> None:
    place = headers(tmp_path / "include")

    assert version_in(place) == "3.12"
    assert headers_of("3.12", [tmp_path, place]).folder == place
    (place / "pyconfig.h").unlink()
    assert version_in(place) is None


def test_missing_headers_are_named_and_where_they_were_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(cpython_headers, "PLACE", tmp_path / "cpython")

    with pytest.raises(Missing, match=r"python3\.12 \(not there\).*mvn is not installed"):
        headers_of("3.12")
    made, missing = wheels.make_all(["3.12"], ["x86_64"], [], tmp_path / "dist")

    assert made == {}
    assert "mvn is not installed" in missing["3.12"]
    assert "CPython 3.12: no headers, so no wheel" in capsys.readouterr().out


def test_extensions_for_debugging_are_never_packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wheels, "ROOT", tmp_path)
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / "kind").write_text("debug")

    with pytest.raises(Failed, match="run make build first"):
        wheels.make_all(["3.12"], ["x86_64"], [], tmp_path / "dist")


def test_jar_is_unpacked_whole_and_nowhere_else(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.jar", tmp_path / "bad.jar"
    with zipfile.ZipFile(good, "w") as packed:
        for name in ("of/bin/python3.12", "of/include/python3.12/Python.h", "of/A.class", "other"):
            packed.writestr(name, name)
    with zipfile.ZipFile(bad, "w") as packed:
        packed.writestr("of/../../escaped", "")

    unpack(good, "of/", tmp_path / "home-1.2")
    with pytest.raises(RuntimeError, match="leads out of it"):
        unpack(bad, "of/", tmp_path / "other-1.2")
    with pytest.raises(RuntimeError, match="has no nothing/"):
        unpack(good, "nothing/", tmp_path / "third-1.2")

    found = {str(path.relative_to(tmp_path)) for path in (tmp_path / "home-1.2").rglob("*.*")}
    assert found == {"home-1.2/bin/python3.12", "home-1.2/include/python3.12",
                     "home-1.2/include/python3.12/Python.h"}  # fmt: skip
    assert not (tmp_path / "other-1.2").exists()
