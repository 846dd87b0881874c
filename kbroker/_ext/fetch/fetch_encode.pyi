from collections.abc import Callable

class FetchEncoder:
    # listener index -> LeaderHints; None: no hints
    find_leaders: Callable[[int], object] | None
