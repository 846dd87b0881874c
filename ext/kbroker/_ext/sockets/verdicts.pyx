"""The authorizer's verdicts for one principal, cached for the hot paths of a network process.

A hot path first tests ``everything``; only if that is not set does it ask about a name, which costs a comparison if it is
the topic of the last request, and one dict lookup if it has been asked about before: with two hundred principals, most of
that is memory that is not in the core's cache. ``kbroker.security.access`` has the rest.
"""

cdef enum:
    # BOUND: names cached per question, as clients can invent them. When it is reached, all are forgotten.
    NAMES_MAX = 10000


cdef class Verdicts:
    """A Python subclass implements ``ask(question, name)``."""

    def __cinit__(self, *args, **kwargs):
        self.cached = [{} for _ in range(QUESTIONS)]
        self.principal_wire = b""

    def set_verdicts(self, bytes principal_wire not None, bint everything):
        """Forget all verdicts: the principal or its permissions have changed."""
        self.principal_wire = principal_wire
        self.everything = everything
        self.version += 1
        self.read_name = self.write_name = None
        for kept in self.cached:
            kept.clear()

    cdef bint may(self, int question, bytes name) except -1:
        """Whether the principal may do this; call it only if ``everything`` is not set."""
        cdef dict kept = <dict>self.cached[question]
        verdict = kept.get(name)
        if verdict is None:
            if len(kept) >= NAMES_MAX:
                kept.clear()
            verdict = kept[name] = bool(self.ask(question, name))
        return verdict


cdef Verdicts unrestricted():
    cdef Verdicts verdicts = Verdicts()
    verdicts.set_verdicts(b"", True)
    return verdicts
