"""Unknown users are shown the same salt by all brokers, and after a restart."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker.controller.access.disguise import SECRET_BYTES, Disguise
from kbroker.ipc.pending import run
from kbroker.metastore import paths
from kbroker.metastore.embedded import EmbeddedStore
from kbroker.metastore.node_file import NodeFile
from kbroker.metastore.settled import SettledStore
from kbroker.metastore.simulated import Faults, SimulatedEnsemble

pytestmark = pytest.mark.unit

SHA = "SCRAM-SHA-256"


def started(file: NodeFile) -> Disguise:
    disguise = Disguise(SettledStore(EmbeddedStore(file)))
    outcome = run(disguise.start())
    assert outcome.done and outcome.error is None
    return disguise


def test_salt_is_that_of_the_name_and_the_same_after_a_restart(tmp_path: Path) -> None:
    file = NodeFile(str(tmp_path))

    first, again = started(file), started(file)

    assert first.salt(SHA, "nobody") == again.salt(SHA, "nobody")
    salts = {first.salt(mechanism, name) for mechanism in (SHA, "SCRAM-SHA-512") for name in "ab"}
    assert len(salts) == 4
    assert len(paths.decode_disguise(file.get(paths.DISGUISE).data)) == SECRET_BYTES


def test_salt_is_the_same_at_brokers_that_start_at_once() -> None:
    ensemble = SimulatedEnsemble(1, Faults(delay_max_ms=5))
    disguises = [Disguise(SettledStore(ensemble.connect())) for _ in range(5)]
    outcomes = [run(disguise.start()) for disguise in disguises]
    ensemble.run_until(lambda: all(outcome.done for outcome in outcomes))

    assert len({disguise.salt(SHA, "nobody") for disguise in disguises}) == 1


@pytest.mark.parametrize("data", [b"", b"{}", b'{"secret": "x"}', b'{"secret": ""}', b"[]"])
def test_damaged_secret_leaves_one_of_its_own(
    tmp_path: Path, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """Logins go on."""
    file = NodeFile(str(tmp_path))
    file.create(paths.KBROKER)
    file.create(paths.DISGUISE, data)

    assert 20 <= len(started(file).salt(SHA, "nobody")) <= 26
    assert paths.DISGUISE in caplog.text
