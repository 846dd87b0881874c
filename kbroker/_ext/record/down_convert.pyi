def to_message_set(
    fd: int,
    size: int,
    *,
    magic: int,
    from_offset: int = 0,
    bytes_max: int = ...,
    hard: bool = False,
    bytes_enough: int = ...,
    at_least_one: bool = True,
) -> tuple[int, bytes, int]: ...
