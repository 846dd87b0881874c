"""Mailboxes: the ZeroMQ sockets between the processes of one broker.

Each process binds one PULL socket and connects a PUSH socket to each process that it writes to. The
sockets are made after the fork and used by the one thread of the process. A message is a 16-byte
envelope (``descriptors.pxd`` has the same layout) and a body; one message carries everything that a
process has for another in one turn of its loop.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import zmq

from kbroker._ext.shared import lane_layout
from kbroker.ipc.process_table import Address, ProcessTable

ENVELOPE = struct.Struct(lane_layout.ENVELOPE_FORMAT)
# The other kinds of descriptors.pxd travel over lanes.
MSG_CALL, MSG_REPLY = lane_layout.CALL, lane_layout.REPLY

# BOUND: messages queued for one peer. A message is a turn's worth of work, so this is a backlog of
# seconds; beyond it a send fails, and the sender returns a retriable error to its clients.
HIGH_WATER_MARK = 10_000
RECONNECT_MS = 5


class MailboxMessage(NamedTuple):
    """A received message; ``data`` starts with the envelope, ``body`` is at ``ENVELOPE.size``."""

    kind: int
    sender: Address
    count: int  # type: ignore[assignment]  # tuple.count is not wanted of a message
    data: bytes


class Mailbox:
    """The bound socket of this process and its connections to the others."""

    def __init__(self, runtime_dir: str, processes: ProcessTable, me: Address) -> None:
        self._runtime_dir = runtime_dir
        self._processes = processes
        self.me = me
        self.incarnation = processes.incarnation(me)
        self._zmq = zmq.Context(io_threads=1)
        self._inbox = self._zmq.socket(zmq.PULL)
        self._inbox.setsockopt(zmq.RCVHWM, HIGH_WATER_MARK)
        self._inbox.setsockopt(zmq.LINGER, 0)
        self._peers: dict[Address, tuple[int, zmq.Socket[bytes]]] = {}
        try:
            self._inbox.bind(processes.endpoint(runtime_dir, me))
        except zmq.ZMQError:
            self.close()  # as garbage, the context would wait for its socket for ever
            raise
        self._recv = self._inbox.recv
        self._addresses = {tuple(address): address for address in processes.addresses}
        self.fd = int(self._inbox.getsockopt(zmq.FD))
        self.dropped = 0

    def receive(self) -> MailboxMessage | None:
        """The next message to this incarnation from a running one; None if there is none.

        The descriptor is edge-triggered: call until None before waiting on ``fd`` again.
        """
        while True:
            try:
                data = self._recv(zmq.NOBLOCK)
            except zmq.Again:
                return None
            if len(data) < ENVELOPE.size:
                self.dropped += 1
                continue
            kind, sender_kind, sender_index, sender_incarnation, target, count = (
                ENVELOPE.unpack_from(data)
            )
            sender = self._addresses.get((sender_kind, sender_index))
            if (
                sender is None
                or target != self.incarnation
                or self._processes.incarnation(sender) != sender_incarnation
            ):
                self.dropped += 1
                continue
            return MailboxMessage(kind, sender, count, data)

    def send(self, to: Address, kind: int, body: bytes | bytearray, count: int = 0) -> int:
        """Queue a message for ``to``; returns the incarnation it is addressed to, 0 if there is
        none or its queue is full.
        """
        incarnation = self._processes.incarnation(to)
        if incarnation == 0:
            return 0
        header = ENVELOPE.pack(
            kind, self.me.kind, self.me.index, self.incarnation, incarnation, count
        )
        try:
            self._peer(to, incarnation).send(header + body, zmq.NOBLOCK)
        except zmq.Again:
            return 0
        return incarnation

    def _peer(self, to: Address, incarnation: int) -> zmq.Socket[bytes]:
        known = self._peers.get(to)
        if known is not None:
            if known[0] == incarnation:
                return known[1]
            known[1].close(linger=0)
        socket = self._zmq.socket(zmq.PUSH)
        socket.setsockopt(zmq.SNDHWM, HIGH_WATER_MARK)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
        socket.connect(self._processes.endpoint(self._runtime_dir, to))
        self._peers[to] = (incarnation, socket)
        return socket

    def close(self, linger_ms: int = 100) -> None:
        """Close every socket; messages that were just sent have ``linger_ms`` to leave."""
        for _, socket in self._peers.values():
            socket.close(linger=linger_ms)
        self._peers.clear()
        self._inbox.close(linger=0)
        self._zmq.term()
