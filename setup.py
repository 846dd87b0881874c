"""Build the Cython extensions of ``ext/``; everything else about the package is in pyproject.toml.

Those of ``ext/kbroker`` are in a wheel; those of ``ext/perf`` are built in place only, beside the
programs that use them.

KBROKER_SKIP_EXTENSIONS=1 installs without building any (the Makefile then builds them in place,
only what changed). KBROKER_DEBUG=1 builds with bounds checks, assertions and line tracing.
KBROKER_SANITIZE=1 builds with the address and undefined-behaviour sanitizers (``make sanitize``).
KBROKER_BUILD_JOBS is how many compilers run at once. KBROKER_WHEEL_TAG is the tag of a wheel that
is built for another Python or machine than this one (``tools/wheels.py``).
"""

import itertools
import os
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

DEBUG = os.environ.get("KBROKER_DEBUG") == "1"
# A program runs on after a finding. With -fwrapv, one of Python's own options, no overflow is one.
SANITIZE = ["-fsanitize=address,undefined", "-fsanitize-recover=address"]
SANITIZE += ["-fno-wrapv", "-fno-omit-frame-pointer"]
SANITIZE = SANITIZE if os.environ.get("KBROKER_SANITIZE") == "1" else []
SOURCES = Path("ext")
# Which kind of extensions is in place: one of another kind is never kept because it is new enough.
KIND = "debug" if DEBUG else "sanitize" if SANITIZE else "ordinary"
KIND_FILE = Path("build/kind")
# Cython and C compilers at once; by default one for each processor that this process may use.
JOBS = int(os.environ.get("KBROKER_BUILD_JOBS", "0")) or len(os.sched_getaffinity(0))

COMPILE_ARGS = ["-std=gnu11", "-Wall", "-Wextra", "-Wno-unused-parameter", "-Wno-unused-function"]
COMPILE_ARGS += ["-O0", "-g", "-UNDEBUG"] if DEBUG else ["-O1" if SANITIZE else "-O2", "-g0"]
COMPILE_ARGS += SANITIZE

# Loops over the bytes of records and columns. The others run a few times a request, and make the
# same machine code slower to build for nothing.
BYTE_LOOPS = {
    "arrow_reader",
    "arrow_writer",
    "batch_cleaner",
    "codec_frames",
    "crc32c",
    "down_convert",
    "keyed_records",
    "legacy_records",
    "message_filter",
    "messages_07",
    "old_messages",
    "offset_map",
    "record_batch",
    "record_codec",
    "record_counts",
    "record_cursor",
    "record_filter",
    "record_reader",
    "forwarder",
}

DIRECTIVES = {
    "language_level": "3",
    "boundscheck": DEBUG,
    "wraparound": DEBUG,
    "cdivision": True,
    "initializedcheck": DEBUG,
    "embedsignature": True,
}


# Where every `inline` is meant: each copy of a walk over records has the tests that it needs, and
# no others. How much the compiler inlines by itself depends on what else is in the file.
INLINED = {"record_batch"}


def optimization(module: str) -> list[str]:
    """Options of one extension behind those of all."""
    if DEBUG or SANITIZE:
        return []
    options = ["-O3"] if module in BYTE_LOOPS else []
    if module in INLINED:
        options.append("-DCYTHON_INLINE=inline __attribute__((always_inline))")
    return options


def extensions(folders: Iterable[Path]) -> list[Extension]:
    """One extension per .pyx; its import name mirrors its path below ext/."""
    modules = []
    for source in sorted(source for folder in folders for source in folder.rglob("*.pyx")):
        name = ".".join(source.relative_to(SOURCES).with_suffix("").parts)
        modules.append(
            Extension(
                name,
                [str(source)],
                include_dirs=["ext/kbroker/_ext/include"],
                extra_compile_args=COMPILE_ARGS + optimization(source.stem),
                extra_link_args=SANITIZE,
            )
        )
    return modules


def remove_another_kind() -> None:
    """Remove the extensions in place, and what they are copies of, if they were built with other
    options than these; and the C sources, which contain the checks of a build for debugging.
    """
    before = KIND_FILE.read_text() if KIND_FILE.exists() else "ordinary"
    if before != KIND:
        folders = [Path(), *KIND_FILE.parent.glob("lib.*")]
        for source in SOURCES.rglob("*.pyx"):
            pattern = f"{source.relative_to(SOURCES).with_suffix('')}.*.so"
            for built in [path for folder in folders for path in folder.glob(pattern)]:
                built.unlink()
            if "debug" in (before, KIND):
                source.with_suffix(".c").unlink(missing_ok=True)
    KIND_FILE.parent.mkdir(exist_ok=True)
    KIND_FILE.write_text(KIND)


def is_newer(source: Path) -> bool:
    """Whether the C source was not written since, as far as the .pyx alone tells."""
    made = source.with_suffix(".c")
    return not made.exists() or made.stat().st_mtime < source.stat().st_mtime


class BuildModules(build_py):
    """Copies the samples of ``config/`` into the package, where ``kbroker sample`` finds them, and
    removes files without a source from the build tree: a wheel contains everything in it.
    """

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        built = {Path(name) for name in self.get_outputs(include_bytecode=False)}
        for path in Path(self.build_lib).rglob("*.py"):
            if path not in built:
                path.unlink()
        samples = Path(self.build_lib) / "kbroker" / "samples"
        shutil.rmtree(samples, ignore_errors=True)
        shutil.copytree("config", samples)


class TaggedWheel(bdist_wheel):
    """A wheel with the tag of what it was built for."""

    def get_tag(self) -> tuple[str, str, str]:
        if tag := os.environ.get("KBROKER_WHEEL_TAG"):
            python, abi, platform = tag.split("-")
            return python, abi, platform
        return super().get_tag()


class BuildExtensions(build_ext):
    """Says on the terminal how far it is; a first build takes most of a minute."""

    def run(self) -> None:
        self.done = itertools.count(1)
        super().run()

    def build_extension(self, ext: Extension) -> None:
        path = Path(self.get_ext_fullpath(ext.name))
        before = path.stat().st_mtime_ns if path.exists() else 0
        super().build_extension(ext)
        number = next(self.done)
        if path.stat().st_mtime_ns != before:
            print(f"[{number}/{len(self.extensions)}] {ext.name}", flush=True)


def compiled() -> list[Extension]:
    """The extensions, with their C sources written."""
    if os.environ.get("KBROKER_SKIP_EXTENSIONS") == "1":
        return []
    folders = [SOURCES / "kbroker"]
    if "--inplace" in sys.argv:
        remove_another_kind()
        folders.append(SOURCES / "perf")
    modules = extensions(folders)
    stale = sum(is_newer(Path(module.sources[0])) for module in modules)
    if stale:
        print(f"translating {stale} extensions into C, {JOBS} at once", flush=True)
    return cythonize(
        modules,
        include_path=[str(SOURCES)],
        compiler_directives=DIRECTIVES,
        nthreads=JOBS,
        quiet=True,
    )


setup(
    cmdclass={
        "bdist_wheel": TaggedWheel,
        "build_py": BuildModules,
        "build_ext": BuildExtensions,
    },
    ext_modules=compiled(),
    options={"build_ext": {"parallel": JOBS}},
)
