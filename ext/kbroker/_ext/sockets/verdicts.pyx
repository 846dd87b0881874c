"""The verdicts of an authorizer for one principal, kept where the hot paths of a network process look them up.

A hot path tests ``everything`` and goes on; only where that is not so it asks about a name, which costs one dict lookup
once it was asked before. ``kbroker.security.access`` is the rest of it.
"""

cdef enum:
    # BOUND: names of a question, which clients may make up. All are forgotten then.
    NAMES_MAX = 10000


cdef class Verdicts:
    """Subclassed in Python, for ``ask(question, name)``."""

    def __cinit__(self, *args, **kwargs):
        self.answers = [{} for _ in range(QUESTIONS)]
        self.principal_wire = b""

    def set_verdicts(self, bytes principal_wire not None, bint everything):
        """Forget what was answered: the principal is another one, or may do other things now."""
        self.principal_wire = principal_wire
        self.everything = everything
        self.version += 1
        for kept in self.answers:
            kept.clear()

    cdef bint may(self, int question, bytes name) except -1:
        """An answer; to be asked only where ``everything`` is not set."""
        cdef dict kept = <dict>self.answers[question]
        answer = kept.get(name)
        if answer is None:
            if len(kept) >= NAMES_MAX:
                kept.clear()
            answer = kept[name] = bool(self.ask(question, name))
        return answer


cdef Verdicts unrestricted():
    cdef Verdicts made = Verdicts()
    made.set_verdicts(b"", True)
    return made
