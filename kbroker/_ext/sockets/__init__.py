"""The bytes of a connection, and requests as they are received."""
