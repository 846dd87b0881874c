#!/usr/bin/env python3
"""Repeat the fault tests with fresh seeds until one fails, or for a while.

    tools/crash_loop.py                     all of tests/fault, until a failure
    tools/crash_loop.py --minutes 60 --scale 3 -- -k killed

The seed of a failing round and the command that repeats it are printed last.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    """The command; 0 if no round failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=0, help="stop after so many; 0: no limit")
    parser.add_argument("--minutes", type=float, default=0, help="stop after so long; 0: no limit")
    parser.add_argument("--scale", type=int, default=1, help="kills and mutations in each test")
    parser.add_argument("--seed", type=int, help="of the first round")
    parser.add_argument("pytest", nargs="*", help="arguments for pytest, after --")
    options = parser.parse_args()
    end = time.monotonic() + options.minutes * 60 if options.minutes else float("inf")
    seeds = random.SystemRandom()
    done = 0
    while time.monotonic() < end and (not options.rounds or done < options.rounds):
        first = done == 0 and options.seed is not None
        seed = options.seed if first else seeds.randrange(1 << 31)
        if not run_round(seed, options.scale, options.pytest):
            return 1
        done += 1
        print(f"round {done} passed, seed {seed}", flush=True)
    return 0


def run_round(seed: int, scale: int, arguments: list[str]) -> bool:
    """Run the tests once; says how to repeat them if one fails."""
    variables = {"KBROKER_FAULT_SEED": str(seed), "KBROKER_FAULT_SCALE": str(scale)}
    command = [sys.executable, "-m", "pytest", "-q", "-x", *(arguments or ["tests/fault"])]
    if not any(argument.startswith("tests") for argument in command):
        command.append("tests/fault")
    finished = subprocess.run(command, cwd=ROOT, env={**os.environ, **variables}, check=False)
    if finished.returncode:
        words = [f"{name}={value}" for name, value in variables.items()]
        print("to repeat:", *words, *command, flush=True)
    return finished.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
