"""Ports of this machine that are kept for a program which listens later."""

from __future__ import annotations

import socket


def reserve_port(address: str = "127.0.0.1") -> socket.socket:
    """Keep a free port, until the socket is closed, for a program that listens with SO_REUSEADDR.

    torch's TCPStore does. The system gives the port to nobody else meanwhile: neither to a program
    that asks for any port, nor to a connection as its own end. A port that is only looked up, and
    free again, may be taken before the program listens.
    """
    keeper = socket.socket()
    keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    keeper.bind((address, 0))
    return keeper


def number(keeper: socket.socket) -> int:
    """The port that a socket has."""
    port: int = keeper.getsockname()[1]
    return port
