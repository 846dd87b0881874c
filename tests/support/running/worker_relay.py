"""What execnet takes for a test process (``forked_workers.py``): it gives its standard input and
output to the collector at the socket of its argument, and lives as long as the fork that has them.
"""

import os
import signal
import socket
import sys

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as collector:
        collector.connect(sys.argv[1])
        socket.send_fds(collector, [b"0"], [0, 1])
        os.close(0)
        os.close(1)
        collector.recv(1)  # nothing comes; it returns when the fork has ended
