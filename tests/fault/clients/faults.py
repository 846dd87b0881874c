"""The faults of the exam of clients: who is harmed, how, and what must go on meanwhile."""

from __future__ import annotations

from typing import NamedTuple

from fault.clients.proxies import HARMS
from fault.clients.roles import ADMINISTERS, COPIES, READS, WRITES, Role

VICTIMS = ("leader", "coordinator", "controller", "bootstrap")
EVERYBODY = "everybody"
PROXIED_S = 10.0
WAITS_S = 20.0
LONG_S = 600.0
MISHAP_S = 8.0
TOPIC_S = 4.0


class Fault(NamedTuple):
    """what: the deed. victim: which broker, or EVERYBODY; "" if none. lasts_s: until it is healed;
    None: it stays until clients have gone on. all_go_on: everything must go on while it lasts, not
    only what does not need the victim. does: the kinds of roles that it can meet.
    """

    what: str
    victim: str = ""
    lasts_s: float | None = None
    all_go_on: bool = True
    does: tuple[str, ...] = (WRITES, READS, ADMINISTERS, COPIES)

    @property
    def is_mishap(self) -> bool:
        """Whether it happens within the program."""
        return self.what in MISHAPS

    @property
    def moves_leaders(self) -> bool:
        """Whether records that only a leader had may be gone."""
        return self.what in (*_DIES, EPOCHS)

    @property
    def is_waiting(self) -> bool:
        """Whether programs can do nothing but wait."""
        return self.victim == EVERYBODY

    @property
    def is_long(self) -> bool:
        """Whether memory is looked at."""
        return self.lasts_s == LONG_S

    @property
    def is_of_topic(self) -> bool:
        return self.what.startswith("topic ")

    def fits(self, role: Role) -> bool:
        """Whether the two make a cell."""
        if role.does not in self.does:
            return False
        if not role.is_ours and (self.is_mishap or (self.is_of_topic and not role.members)):
            return False
        if self.what in ("one cancel", "two cancels"):
            return role.is_async
        if self.what == "max.poll.interval":
            return role.members > 0
        if self.what in ("fork", "callbacks raise"):
            return not role.is_async and not (role.is_transactional and self.what == "fork")
        return True


_READ_OR_WRITE = (WRITES, READS)
_RECORDS = (WRITES, READS, COPIES)
# What happens in the program itself, or by what it does.
MISHAPS: dict[str, tuple[str, ...]] = {
    "max.poll.interval": (READS,),
    "one cancel": _READ_OR_WRITE,
    "two cancels": _READ_OR_WRITE,
    "callbacks raise": _READ_OR_WRITE,
    "fork": _READ_OR_WRITE,
    "program ends": _READ_OR_WRITE,
}
# One harm on the way after the other, for ten minutes.
UNSTEADY = "unsteady"
# Leaders change every second, and readers let records of several epochs come together.
EPOCHS = "epochs change"
EPOCHS_S = 15.0
# The cluster notices these.
_DIES = ("killed", "moved", "replaced", "stopped")
# In the way between clients and the broker, which the cluster does not notice.
_ON_THE_WAY = {name: name in ("late", "once", "doubled") for name in HARMS}


def _faults() -> dict[str, Fault]:
    found = {"nothing": Fault("nothing", lasts_s=2.0)}
    for victim in VICTIMS:
        for what in _DIES:
            found[f"{victim} {what}"] = Fault(what, victim)
        for what, all_go_on in _ON_THE_WAY.items():
            found[f"{victim} {what}"] = Fault(what, victim, PROXIED_S, all_go_on)
    for what in ("silent", "cut", "errors"):
        found[f"{EVERYBODY} {what}"] = Fault(what, EVERYBODY, WAITS_S, False)
    found["leader unsteady"] = Fault(UNSTEADY, "leader", LONG_S, False)
    found[EPOCHS] = Fault(EPOCHS, "", EPOCHS_S, False, _RECORDS)
    for what in ("deleted", "recreated", "grown"):
        found[f"topic {what}"] = Fault(f"topic {what}", "", TOPIC_S, False, _READ_OR_WRITE)
    for what, does in MISHAPS.items():
        found[what] = Fault(what, "", MISHAP_S, does=does)
    return found


FAULTS: dict[str, Fault] = _faults()
