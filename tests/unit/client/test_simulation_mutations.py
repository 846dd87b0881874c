"""The simulations of clients find what they are for: faults that are put into the client."""

from __future__ import annotations

import pytest
from support.simulation.simulation_mutations import MUTATIONS, Mutation, found_by, mutated

pytestmark = pytest.mark.unit


@pytest.mark.slow
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda one: one.name.replace(" ", "-"))
def test_the_simulation_fails_with_a_fault_in_the_client(mutation: Mutation) -> None:
    """Without this nobody knows whether its invariants can be broken at all."""
    assert found_by(mutation) is not None


def test_each_fault_fits_the_client_as_it_is() -> None:
    """Whoever changes one of these places changes the fault as well (simulation_mutations.py)."""
    for one in MUTATIONS:
        with mutated(one):
            pass
