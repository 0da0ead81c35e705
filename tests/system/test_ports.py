"""Ports that are kept for a program which listens later."""

import socket

import pytest
from torch._C._distributed_c10d import TCPStore

from harness.system.ports import number, reserve_port


def test_nobody_else_gets_a_port_that_is_kept_and_the_store_of_torch_listens_on_it() -> None:
    with reserve_port() as keeper, socket.socket() as other:
        address = ("127.0.0.1", number(keeper))
        with pytest.raises(OSError, match="in use"):
            other.bind(address)
        with pytest.raises(ConnectionRefusedError):
            other.connect(address)
        store = TCPStore("127.0.0.1", number(keeper), 1, is_master=True)
        store.set("key", "value")
        assert store.get("key") == b"value"


def test_ports_that_are_kept_differ() -> None:
    keepers = [reserve_port() for _ in range(100)]
    try:
        assert len({number(keeper) for keeper in keepers}) == 100
    finally:
        for keeper in keepers:
            keeper.close()
