ROWS: int

# network process, listener, client id, software name, its version, connections, requests, bytes in,
# bytes out
Row = tuple[int, int, bytes, bytes, bytes, int, int, int, int]

def region_size(network_count: int) -> int: ...

class ClientFigures:
    def __init__(self, region: object, network_index: int) -> None: ...

def read_clients(region: object, network_count: int) -> list[Row]: ...
