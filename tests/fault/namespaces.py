"""Machines for one test: network namespaces on a bridge, for root on Linux.

Each has an address that this process reaches, and drops the packets of others on demand, those of
one direction: the sender's TCP then repeats them, less and less often, and new connections fail. Or
it rejects them: the sender's connections are reset, and new ones refused.
"""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

CHAIN = ("inet", "cut", "input")
# The networks for measurements (RFC 2544) are used nowhere else.
NETS = [f"198.18.{number}" for number in range(256)]


class Network:
    """names: of its machines."""

    def __init__(self, names: list[str]) -> None:
        """Skips the test where this is not possible."""
        if os.geteuid() != 0:
            pytest.skip("network namespaces need root")
        for command in ("ip", "nft"):
            if shutil.which(command) is None:
                pytest.skip(f"{command} is not installed")
        # What happens to packets, by sender and receiver.
        self._stopped: dict[tuple[str, str], list[str]] = {}
        self._spaces: list[str] = []
        taken = _run("ip", "-4", "-o", "address")
        net = next(net for net in NETS if f" {net}." not in taken)
        self.addresses = {name: f"{net}.{number}" for number, name in enumerate(names, 2)}
        try:
            # The bridge is in a namespace of its own, where no rule of this machine applies.
            self._add("switch")
            _run("ip", "-n", _space("switch"), "link", "add", "bridge", "type", "bridge")
            _run("ip", "-n", _space("switch"), "link", "set", "bridge", "up")
            self._plug(str(os.getpid()), f"kbroker{os.getpid()}", [], f"{net}.1")
            for name, address in self.addresses.items():
                self._add(name)
                self._plug(_space(name), "eth0", ["-n", _space(name)], address)
                _nft(name, "add", "table", *CHAIN[:2])
                _nft(name, "add", "chain", *CHAIN, "{ type filter hook input priority 0 ; }")
        except RuntimeError as error:
            self.close()
            pytest.skip(f"there are no network namespaces here: {error}")

    def _add(self, name: str) -> None:
        _run("ip", "netns", "add", _space(name))
        self._spaces.append(_space(name))
        _run("ip", "-n", _space(name), "link", "set", "lo", "up")

    def _plug(self, space: str, device: str, there: list[str], address: str) -> None:
        """Connect a namespace with the bridge. there: the option of ip for it."""
        port = f"to-{address.rpartition('.')[2]}"
        link = ("ip", "-n", _space("switch"), "link")
        _run(*link, "add", port, "type", "veth", "peer", "name", device, "netns", space)
        _run(*link, "set", port, "master", "bridge", "up")
        _run("ip", *there, "address", "add", f"{address}/24", "dev", device)
        _run("ip", *there, "link", "set", device, "up")

    def within(self, name: str) -> list[str]:
        """The beginning of a command that is to run on a machine, in the process that starts it."""
        return ["ip", "netns", "exec", _space(name)]

    def drop(self, sender: str, receiver: str) -> None:
        """No packet of ``sender`` arrives at ``receiver`` any more."""
        self._stopped[sender, receiver] = ["drop"]
        self._set_rules(receiver)

    def reject(self, sender: str, receiver: str) -> None:
        """``receiver`` resets the connections of ``sender``, as a firewall with REJECT does."""
        words = ["meta", "l4proto", "tcp", "reject", "with", "tcp", "reset"]
        self._stopped[sender, receiver] = words
        self._set_rules(receiver)

    def heal(self, name: str | None = None) -> None:
        """Let all packets arrive, or those from and to this machine."""
        healed = {ends for ends in self._stopped if name is None or name in ends}
        for ends in healed:
            del self._stopped[ends]
        for receiver in {receiver for _, receiver in healed}:
            self._set_rules(receiver)

    def _set_rules(self, receiver: str) -> None:
        _nft(receiver, "flush", "chain", *CHAIN)
        for (sender, other), verdict in self._stopped.items():
            if other == receiver:
                source = self.addresses[sender]
                _nft(receiver, "add", "rule", *CHAIN, "ip", "saddr", source, *verdict)

    def close(self) -> None:
        """Remove everything; the processes on it have ended."""
        while self._spaces:
            subprocess.run(["ip", "netns", "delete", self._spaces.pop()], check=False)


def _space(name: str) -> str:
    return f"kbroker-{os.getpid()}-{name}"


def _nft(name: str, *words: str) -> None:
    _run("ip", "netns", "exec", _space(name), "nft", *words)


def _run(*command: str) -> str:
    """What a command prints. Raises RuntimeError."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout
