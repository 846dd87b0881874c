#!/usr/bin/env python3
"""The exams: faults of disks, power failures, kills and greedy clients, at three sizes.

    tools/exam.py                      what there is
    tools/exam.py E4                   its tests, also those that `make test` leaves out
    tools/exam.py E5 --size night      every call, not every twelfth
    tools/exam.py security -k logins   those of its tests whose names have that
    tools/exam.py simulation --seeds 100000
    tools/exam.py clients --size night --brokers kbroker --resume

A failing test prints the seed that repeats it (``KBROKER_FAULT_SEED``), a failing simulation the
command that does.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
SIZES = ("commit", "night", "release")


class Exam(NamedTuple):
    """scales: KBROKER_FAULT_SCALE at each size. command: run after the tests, not for a commit.
    clusters: the tests run once with each as KBROKER_EXAM_CLUSTER, for a commit with the first.
    """

    title: str
    tests: list[str]
    scales: tuple[int, int, int]
    command: list[str] = []
    clusters: tuple[str, ...] = ()


FAULT = "tests/fault/"
INTEROP = "tests/interop/"
EXAMS = {
    "E2": Exam(
        "power cuts: replayed from a recorded log of writes, and of a real file system",
        [FAULT + name for name in ("test_power_cuts.py", "test_power_cut_broker.py",
                                   "test_power_cut_ext4.py", "test_power_cut_clock.py")],
        (1, 20, 200),
    ),
    "E3": Exam(
        "files torn, flipped, zeroed, emptied, removed, duplicated",
        [FAULT + name for name in ("test_storage_damage.py", "test_compacted_damage.py",
                                   "test_damaged_files.py", "test_any_damage.py")],
        (1, 10, 100),
    ),
    "E4": Exam(
        "a full disk",
        [FAULT + name for name in ("test_disks.py", "test_storage_disks.py",
                                   "test_full_disk_cycles.py")] + ["-k", "full"],
        (1, 15, 150),
    ),
    "E5": Exam(
        "a failing disk: the Nth call, for every N; a disk that dies",
        [FAULT + name for name in ("test_failing_calls.py", "test_failing_broker.py",
                                   "test_disks.py", "test_storage_disks.py")]
        + ["-k", "fail or dead"],
        (1, 12, 12),
    ),
    "crowd": Exam(
        "a client beside a hundred greedy ones, and beside the largest requests",
        [FAULT + "test_crowd_exam.py"],
        (1, 1, 1),
    ),
    "cluster": Exam(
        "three brokers: processes, trees, links and ZooKeeper die, stand still and are cut off",
        [FAULT + "test_cluster_kills.py", FAULT + "test_cluster_one_way.py",
         FAULT + "test_cluster_transactions.py",
         "tests/integration/test_cluster_throttles.py",
         FAULT + "test_cluster_second_protocol.py",
         "tests/integration/test_rolling_restart.py"],
        (1, 10, 100),
    ),
    "failover": Exam(
        "three brokers, killed at once by role: the longest pause of each kind of client",
        ["-s", FAULT + "test_failover_exam.py"],
        (1, 25, 50),
    ),
    "upgrade": Exam(
        "three brokers under load, from the build of an earlier revision to this one and back",
        [FAULT + "test_upgrade_exam.py"],
        (1, 3, 10),
    ),
    "stalls": Exam(
        "three brokers, of which one stands still at a time: nobody takes it for dead",
        ["-s", FAULT + "test_stalls_exam.py"],
        (1, 25, 40),
    ),
    "namespaces": Exam(
        "three brokers and ZooKeeper in network namespaces: packets are dropped, one way and both",
        [FAULT + "test_cluster_namespaces.py"],
        (1, 5, 50),
    ),
    "mixed": Exam(
        "kbroker and Apache Kafka 2.7 in one cluster; Kafka's tools on kbrokers",
        [INTEROP + name for name in ("test_mixed_admin.py", "test_mixed_cluster.py",
                                     "test_mixed_coordinators.py", "test_mixed_divergence.py",
                                     "test_mixed_features.py", "test_mixed_formats.py",
                                     "test_mixed_old_offsets.py",
                                     "test_mixed_power_failure.py", "test_mixed_protocols.py",
                                     "test_mixed_ranges.py", "test_mixed_security.py",
                                     "test_mixed_shutdown.py", "test_mixed_swap.py",
                                     "test_cluster_feature_tool.py", "test_cluster_tools.py")],
        (1, 1, 1),
    ),
    "foreign": Exam(
        "other people's clients on three brokers: plain, and SASL_SSL with each mechanism",
        [INTEROP + name for name in ("test_administration.py", "test_client_versions.py",
                                     "test_clients_over_a_restart.py", "test_cross_reading.py",
                                     "test_group_churn.py", "test_group_offsets.py",
                                     "test_groups.py", "test_positions.py",
                                     "test_produce_fetch.py", "test_transactions.py")],
        (3, 3, 3),  # time: the first test waits for three brokers
        clusters=("PLAINTEXT", "SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN"),
    ),
    "security": Exam(
        "S1 to S13: hostile bytes, guessed passwords, floods, names, secrets (docs/testing.md)",
        ["tests/wire/test_codec_hostile.py", "tests/wire/test_fetch_hostile.py",
         "tests/wire/test_record_bombs.py", "tests/property/test_handlers_hostile.py"]
        + ["tests/integration/test_hostile_" + name for name in (
            "batches.py", "connections.py", "frames.py", "names.py")]
        + ["tests/unit/handlers/test_authorization.py",
           "tests/unit/network/test_hot_authorization.py",
           INTEROP + "test_authorization_matrix.py", INTEROP + "test_secure_clients.py"]
        + [FAULT + name for name in ("test_security_connections.py", "test_security_flood.py",
                                     "test_security_logins.py", "test_security_scram.py",
                                     "test_security_secrets.py", "test_security_settings.py",
                                     "test_security_tls.py",
                                     "test_no_descriptors.py", "test_cross_talk.py")],
        (1, 20, 400),
    ),
    "packages": Exam(
        "a wheel in an empty environment, the sdist, the image and testcontainers that start it",
        ["-s"] + ["tests/integration/" + name for name in ("test_packages.py",
                                                           "test_container.py")],
        (1, 1, 1),
    ),
    "E10": Exam(
        "compaction against a model, with kills at every step",
        [FAULT + "test_compaction_exam.py", FAULT + "test_compaction_kills.py",
         "tests/property/test_compaction_model.py"],
        (1, 1, 4),
        [sys.executable, FAULT + "compaction_exam.py", "--kills", "100"],
    ),
}  # fmt: skip


SIMULATION = [sys.executable, "tests/support/simulation/seed_runs.py", "--seeds"]
SEEDS = (2_000, 10_000, 100_000)
PAIRS = "pairs"  # a size of the exam of clients
CLIENTS = [sys.executable, FAULT + "clients/runner.py"]


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("exam", nargs="?", choices=[*EXAMS, "simulation", "clients"])
    parser.add_argument("--size", choices=[*SIZES, PAIRS], default=SIZES[0])
    parser.add_argument("--seeds", type=int, help="of the simulation, instead of its size")
    parser.add_argument("-k", metavar="WORDS", help="only tests that match, as pytest's -k")
    options, more = parser.parse_known_args()
    if options.exam == "clients":  # it has options of its own
        command = [*CLIENTS, "--size", options.size, *more]
        os.chdir(ROOT)
        os.execv(command[0], command)  # whoever ends this program ends the exam
    if options.size == PAIRS:
        parser.error(f"only clients have the size {PAIRS}")
    if more:
        parser.error(f"unrecognized arguments: {' '.join(more)}")
    if options.exam is None:
        for name, exam in EXAMS.items():
            print(f"{name:10} {exam.title}")
        print("simulation three brokers on a simulated store, with simulated disks and links;")
        print("           and consumers and producers against brokers that follow a script")
        print("clients    each way to use our clients in each fault (docs/testing.md)")
        return 0
    if options.exam == "simulation":
        seeds = options.seeds or SEEDS[SIZES.index(options.size)]
        return subprocess.run([*SIMULATION, str(seeds)], cwd=ROOT, check=False).returncode
    exam = EXAMS[options.exam]
    scale = exam.scales[SIZES.index(options.size)]
    environment = {"KBROKER_FAULT_SCALE": str(scale), **os.environ}
    command = [sys.executable, "-m", "pytest", "-q", "-o", "timeout=0", *exam.tests]
    if options.k:
        own = f"({exam.tests[-1]}) and " if "-k" in exam.tests else ""
        command += ["-k", f"{own}({options.k})"]  # the last one counts
    code = 0
    for cluster in exam.clusters[: 1 if options.size == SIZES[0] else None] or ("",):
        chosen = {"KBROKER_EXAM_CLUSTER": cluster} if cluster else {}
        shown = {"KBROKER_FAULT_SCALE": environment["KBROKER_FAULT_SCALE"], **chosen}
        print(*(f"{name}={value}" for name, value in shown.items()), *command, flush=True)
        done = subprocess.run(command, cwd=ROOT, env={**environment, **chosen}, check=False)
        code = code or done.returncode
    if code == 0 and exam.command and options.size != SIZES[0] and not options.k:
        code = subprocess.run(exam.command, cwd=ROOT, check=False).returncode
    return code


if __name__ == "__main__":
    sys.exit(main())
