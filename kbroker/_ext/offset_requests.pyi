from kbroker.cluster.image import TopicImage

class CommitRequest:
    group_id: str
    member_id: str
    group_instance_id: str | None
    generation_id_or_member_epoch: int

    def partitions(self) -> list[tuple[str, int]]: ...
    def failure(self, code: int) -> bytes: ...
    def commit(
        self,
        topics: dict[str, TopicImage],
        metadata_max: int,
        now_ms: int,
        records: list[tuple[bytes, bytes | None]],
    ) -> bytes: ...

def parse_commit(body: bytes, version: int) -> CommitRequest | None: ...
