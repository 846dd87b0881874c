from kbroker._ext.shared.quota_table import Quota

class ClientUsage:
    @property
    def client_id(self) -> bytes: ...
    def __init__(
        self,
        client_id: bytes,
        produce: Quota | None,
        fetch: Quota | None,
        request: Quota | None,
    ) -> None: ...
