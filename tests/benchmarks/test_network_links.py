"""Processes at nodes of a network of namespaces: what they bring along, and what becomes of them."""

import os
import time

import pytest

from network_links import forked_at, linked_nodes


def test_none_waits_for_one_that_failed(netns, capfd) -> None:
    def be_node(number: int) -> None:
        if number == 1:
            raise ValueError("no room here")
        time.sleep(60)

    began_s = time.monotonic()
    with linked_nodes(2, "100mbit") as nodes, pytest.raises(RuntimeError, match="a node failed"):
        forked_at(nodes, be_node)
    assert time.monotonic() - began_s < 30
    assert "node 1: ValueError('no room here')" in capfd.readouterr().out


def test_a_node_finds_its_interface_anew(netns, monkeypatch, tmp_path) -> None:
    """Where ranks of this process have met on loopback, the variable says so."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    found = tmp_path / "found"
    with linked_nodes(1, "100mbit") as nodes:
        forked_at(nodes, lambda _: bool(found.write_text(os.environ.get("GLOO_SOCKET_IFNAME", "none"))))
    assert found.read_text() == "none" and os.environ["GLOO_SOCKET_IFNAME"] == "lo"
