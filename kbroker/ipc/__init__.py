"""How the processes of one broker share memory and talk to each other."""
