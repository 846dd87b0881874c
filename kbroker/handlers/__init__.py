"""One module per API: translates between the wire and the processes that own what is asked for."""
