"""Build the Cython extensions of ``ext/``; everything else about the package is in pyproject.toml.

KBROKER_SKIP_EXTENSIONS=1 installs without building any (the Makefile then builds them in place,
only what changed). KBROKER_DEBUG=1 builds with bounds checks, assertions and line tracing.
KBROKER_SANITIZE=1 builds with the address and undefined-behaviour sanitizers (``make sanitize``).
"""

import os
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

DEBUG = os.environ.get("KBROKER_DEBUG") == "1"
SANITIZE = ["-fsanitize=address,undefined", "-fno-omit-frame-pointer"]
SANITIZE = SANITIZE if os.environ.get("KBROKER_SANITIZE") == "1" else []
SOURCES = Path("ext")
JOBS = int(os.environ.get("KBROKER_BUILD_JOBS", "0"))  # Cython and C compilers at once

COMPILE_ARGS = ["-std=gnu11", "-Wall", "-Wextra", "-Wno-unused-parameter", "-Wno-unused-function"]
COMPILE_ARGS += ["-O0", "-g", "-UNDEBUG"] if DEBUG else ["-O3", "-g0"]
COMPILE_ARGS += SANITIZE

DIRECTIVES = {
    "language_level": "3",
    "boundscheck": DEBUG,
    "wraparound": DEBUG,
    "cdivision": True,
    "initializedcheck": DEBUG,
    "embedsignature": True,
}


def extensions() -> list[Extension]:
    """One extension per .pyx; its import name mirrors its path below ext/."""
    found = []
    for source in sorted(SOURCES.rglob("*.pyx")):
        name = ".".join(source.relative_to(SOURCES).with_suffix("").parts)
        found.append(
            Extension(
                name,
                [str(source)],
                include_dirs=["ext/kbroker/_ext/include"],
                extra_compile_args=COMPILE_ARGS,
                extra_link_args=SANITIZE,
            )
        )
    return found


def compiled() -> list[Extension]:
    """The extensions, with their C sources written."""
    if os.environ.get("KBROKER_SKIP_EXTENSIONS") == "1":
        return []
    return cythonize(
        extensions(),
        include_path=[str(SOURCES)],
        compiler_directives=DIRECTIVES,
        nthreads=JOBS,
        quiet=True,
    )


setup(
    ext_modules=compiled(),
    options={"build_ext": {"parallel": JOBS}} if JOBS else {},
)
