"""SASL on the server's side: a pure state machine for each mechanism, which knows no sockets."""
