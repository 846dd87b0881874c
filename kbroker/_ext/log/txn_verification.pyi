from collections.abc import Callable

class TxnVerification:
    patience_ms: int
    @property
    def held_count(self) -> int: ...
    @property
    def asked_total(self) -> int: ...
    @property
    def failed_total(self) -> int: ...
    @property
    def next_ask_ms(self) -> int | None: ...
    def set_verifier(
        self,
        on_verify: Callable[[int, int, int, str, int, int], None] | None,
        verify_all: bool = True,
    ) -> None: ...
