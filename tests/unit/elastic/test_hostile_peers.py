"""Whoever else comes to a run's node link, whatever he says or does not say: he can end a run at most."""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.base.clock import SystemClock
from assay.base.errors import AssayError
from assay.elastic.environment import environment_here
from assay.elastic.faults import NO_FAULTS
from assay.elastic.nodes import follower as follower_module
from assay.elastic.nodes.connection import (
    MAX_MESSAGE_BYTES,
    Beats,
    Ended,
    Exit,
    Hello,
    Link,
    LinkLost,
    Notice,
    Start,
    accept_link,
    connect_link,
    link_key,
)
from assay.elastic.nodes.follower import Follower
from assay.elastic.nodes.group import _NO_BEAT, _RemoteRanks
from assay.elastic.nodes.server import NodeServer, Peer
from assay.elastic.processor import processor_here
from assay.elastic.task import AttemptEnd, Orders
from assay.records.failure import Failure
from assay.records.rank_device import RankDevice
from assay.records.run import Attempt, Run
from assay.training.recipe import recipe_sha256
from machine import MACHINE
from tiny_recipe import tiny_recipe

HERE, AROUND = processor_here({}), environment_here({})
CPU, SILENT = RankDevice("cpu"), RankDevice()
KEY = b"secret"
CLOCK = SystemClock()
ATTEMPT = Attempt(run_id="ours", attempt=3, world_size=4, start_step=0, started_s=0.0, **MACHINE)


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def linked(between: Callable[[socket.socket], socket.socket] = lambda item: item) -> tuple[Link, Link]:
    """The lead's end and a follower's, who knows the key."""
    leader, node = socket.socketpair()
    ends: list[Link] = []
    thread = threading.Thread(target=lambda: ends.append(Link(between(node), KEY, leads=False)))
    thread.start()
    ours = Link(leader, KEY, leads=True)
    thread.join()
    return ours, ends[0]


class Nobody:
    """Is told that nodes go, and does nothing about it."""

    def lose(self, node: int) -> None: ...

    def leaves(self, node: int) -> None: ...


def remote(link: Link) -> _RemoteRanks:
    peer = Peer(link, Hello(node=1, host="there", processor=HERE, code_version="v", environment=AROUND))
    return _RemoteRanks(orders(world_size=4), 1, (), 1, peer, range(2, 4), Nobody(), CLOCK)


def arrives(server: NodeServer, limit_s: float) -> Peer | None:
    """The first node that was taken in within a time."""
    deadline_s = time.monotonic() + limit_s
    while (peer := server.next_peer()) is None and time.monotonic() < deadline_s:
        time.sleep(0.01)
    return peer


def frame_of(link: Link, data: bytes) -> None:
    """What only somebody with the key can send."""
    link._put(data)


NOTHING = b"\0" * 68


@pytest.mark.parametrize("message", [b"", b"GET / HTTP/1.0\r\n\r\n" * 8, NOTHING, b"\xff" * 200, b"x" * 4_000_000])
def test_who_does_not_know_the_key_is_let_go_and_holds_nobody_up(port: int, message: bytes) -> None:
    with closing(NodeServer("", port, lambda: KEY)) as server:
        strangers = [socket.create_connection(("127.0.0.1", port)) for _ in range(20)]
        for stranger in strangers:
            stranger.setblocking(False)
            stranger.send(message)
        link = connect_link("127.0.0.1", port, KEY, timeout_s=20.0)
        link.send(Hello(node=1, host="there", processor=HERE, code_version="v", environment=AROUND))
        peer = arrives(server, 5.0)
        assert peer is not None and peer.node == 1 and server.next_peer() is None
        peer.link.close()
        for stranger in strangers:
            stranger.close()


@pytest.mark.parametrize("hello", [Notice(type="stop"), Ended(end=AttemptEnd("succeeded", 1))])
def test_who_does_not_introduce_itself_is_none_of_the_run(port: int, hello: Any) -> None:
    with closing(NodeServer("", port, lambda: KEY)) as server:
        link = connect_link("127.0.0.1", port, KEY, timeout_s=5.0)
        link.send(hello)
        assert arrives(server, 0.4) is None
        with pytest.raises(LinkLost):
            link.receive(5.0)


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"\xff\xfe", b"[]", b'{"type":"eval"}', b'{"type":"hello","node":1}', b"[" * 100_000,
     b'{"type":"ended","end":{"outcome":"failed","num_alive":0,"error":7}}',
     b'{"type":"ended","end":{"outcome":"failed","num_alive":0,"error":{"kind":[],"text":"x"}}}',
     b'{"type":"signal","number":999}', b'{"type":"beats","beats":[[1,"compute",1e999,0,0]],"devices":[]}'],
)  # fmt: skip
def test_what_is_no_message_loses_the_node_and_nothing_else(data: bytes) -> None:
    leader, node = linked()
    frame_of(node, data)
    ranks = remote(leader)
    ranks.listen(1.0)
    assert ranks.ended is not None and ranks.ended.failure is not None
    assert ranks.ended.failure.failure_kind == "lost_node"


FAILURE = Failure(failure_kind="data_error", run_id="ours", attempt=3, signature="s", text="t")
BEAT = {"step": 1, "phase": "compute", "at_s": 1.0, "own_s": 0.0, "longest_step_s": 0.0}


@pytest.mark.parametrize(
    "message",
    [
        Beats(beats=(None,), devices=(CPU,)),
        Beats(beats=(None, None), devices=()),
        Beats(beats=(None,) * 3, devices=(SILENT, SILENT, SILENT)),
        Ended(end=AttemptEnd("succeeded", 3)),
        Ended(end=AttemptEnd("succeeded", -1)),
        Ended(end=AttemptEnd("failed", 1, failure=FAILURE.model_copy(update={"run_id": "theirs"}))),
        Ended(end=AttemptEnd("failed", 1, failure=FAILURE.model_copy(update={"attempt": 2}))),
    ],
)
def test_a_node_that_speaks_of_what_is_not_its_own_is_lost(message: Any) -> None:
    leader, node = linked()
    node.send(message)
    ranks = remote(leader)
    ranks.listen(1.0)
    assert ranks.ended is not None and "protocol violation" in ranks.ended.failure.text  # type: ignore[union-attr]


@pytest.mark.parametrize("kind", ["__loader__", "__builtins__", "__doc__", "SystemExit", "eval", "", "AssayError"])
def test_an_error_is_one_of_ours_whatever_name_it_is_given(kind: str) -> None:
    output = {"type": "ended", "end": {"outcome": "failed", "num_alive": 0, "error": {"kind": kind, "text": "1"}}}
    leader, node = linked()
    frame_of(node, json.dumps(output).encode())
    events = leader.receive(1.0)
    assert isinstance(events, Ended)
    assert type(events.end.error) is AssayError
    assert str(events.end.error) == "1"


@pytest.mark.parametrize(("announced", "message"), [(0, b""), (1000, b""), (MAX_MESSAGE_BYTES, b"x" * 99)])
def test_nobody_waits_for_the_rest_of_a_message(announced: int, message: bytes) -> None:
    leader, node = linked()
    node._socket.sendall(announced.to_bytes(4, "big") + message)
    began = time.monotonic()
    assert leader.receive(0.1) is None
    assert leader.receive(0.1) is None
    assert time.monotonic() - began < 2


def test_a_message_larger_than_any_of_ours_is_not_read() -> None:
    leader, node = linked()
    node._socket.sendall((MAX_MESSAGE_BYTES + 1).to_bytes(4, "big"))
    with pytest.raises(LinkLost, match="announced a message"):
        leader.receive(1.0)


def test_a_node_that_never_stops_talking_does_not_keep_the_lead_from_its_work() -> None:
    leader, node = linked()

    def talk() -> None:
        try:
            while True:
                node.send(Beats(beats=(None, None), devices=(SILENT, SILENT)))
        except LinkLost:
            return

    thread = threading.Thread(target=talk, daemon=True)
    thread.start()
    ranks = remote(leader)
    ranks.listen(0.1)
    assert ranks.ended is None
    leader.close()
    thread.join(10)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.binary(max_size=200), min_size=1, max_size=5))
def test_bytes_that_somebody_slips_in_end_the_link_or_wait_for_more(pieces: list[bytes]) -> None:
    leader, node = linked()
    for piece in pieces:
        node._socket.sendall(piece)
    try:
        assert all(leader.receive(0.0) is None for _ in range(8))
    except LinkLost:
        pass
    finally:
        leader.close()
        node.close()


class _Between:
    """Somebody on the line: passes the introduction on, then what he made of each message."""

    def __init__(self, change: Callable[[bytes], list[bytes]]) -> None:
        self._change = change

    def __call__(self, connected: socket.socket) -> socket.socket:
        ours, expected = socket.socketpair()
        threading.Thread(target=self._pass_on, args=(connected, ours, 1 << 30), daemon=True).start()
        threading.Thread(target=self._pass_on, args=(ours, connected, 68), daemon=True).start()
        return expected

    def _pass_on(self, source: socket.socket, target: socket.socket, untouched: int) -> None:
        with source, target, contextlib.suppress(OSError):
            while data := source.recv(1 << 20):
                first, rest = data[:untouched], data[untouched:]
                untouched -= len(first)
                for item in [first, *(self._change(rest) if rest else [])]:
                    target.sendall(item)


CHANGES: dict[str, Callable[[bytes], list[bytes]]] = {
    "twice": lambda data: [data, data],
    "flipped": lambda data: [data[:-1] + bytes([data[-1] ^ 1])],
    "swapped": lambda data: [data[:-15] + b'{"type": "bye"}'],
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_message_that_was_changed_or_said_again_on_the_way_ends_the_link(change: str) -> None:
    leader, node = linked(_Between(CHANGES[change]))
    node.send(Notice(type="stop"))
    with pytest.raises(LinkLost, match=r"key of this run|announced"):
        for _ in range(20):
            leader.receive(0.1)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    recipe = tiny_recipe()
    return Run(
        run_id="ours", created_s=0.0, recipe=recipe, recipe_sha256=recipe_sha256(recipe, ""),
        dataset_fingerprint="", code_version="", run_dir=str(tmp_path), store_url=str(tmp_path), num_steps=10,
    )  # fmt: skip


def orders(**changes: Any) -> Orders:
    attempt = ATTEMPT.model_copy(update={"world_size": 2, **changes})
    return Orders(attempt=attempt, commit=None, faults=NO_FAULTS, parallel="ddp", failure_s=1.0)


def follows(run: Run, port: int, speaks: Callable[[Link], None]) -> None:
    """A follower of ours, to whom a leader `speaks`."""
    key = link_key(Path(run.run_dir))

    def speak() -> None:
        link = accept_link(server.accept()[0], key)
        assert link is not None
        speaks(link)
        is_over.wait(10)
        link.close()

    is_over = threading.Event()
    with socket.create_server(("127.0.0.1", port)) as server:
        thread = threading.Thread(target=speak, daemon=True)
        thread.start()
        link = connect_link("127.0.0.1", port, key, timeout_s=5.0)
        try:
            Follower(run, link, "127.0.0.1", node=1, context=None, clock=CLOCK).follow(lambda: None)
        finally:
            is_over.set()
            thread.join(10)


@pytest.mark.parametrize(
    ("changes", "ranks"),
    [
        ({}, (0, 3)),
        ({}, (10**9, 10**9)),
        ({"run_id": "theirs"}, (0, 1)),
        ({"world_size": 2**30}, (0, 2**30)),
    ],
)
def test_a_lead_that_asks_for_what_is_not_the_runs_gets_nothing_started(
    run: Run, port: int, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], ranks: tuple[int, int]
) -> None:
    started: list[Any] = []
    monkeypatch.setattr(follower_module, "RankProcesses", lambda *arguments: started.append(arguments))
    start = Start(orders=orders(**changes), first_rank=ranks[0], num_ranks=ranks[1], rendezvous_port=80, nodes=())
    with pytest.raises(AssayError, match=r"its leader asked for|--workers"):
        follows(run, port, lambda link: link.send(start))
    assert started == []


@pytest.mark.parametrize("rendezvous_port", [0, -1, 1 << 16])
def test_ranks_meet_at_a_port_of_the_lead_and_nowhere_else(rendezvous_port: int) -> None:
    with pytest.raises(ValueError, match="rendezvous_port"):
        Start(orders=orders(), first_rank=0, num_ranks=1, rendezvous_port=rendezvous_port, nodes=())


class _DiesYoung:
    """Ranks of which the first tells its device and is killed, all within one sign of life."""

    def __init__(self, *_: Any) -> None:
        self.polls = 0

    def wait_for_news(self, timeout_s: float) -> None:
        self.polls += 1

    def beats(self) -> list[Any]:
        return [_NO_BEAT]

    def devices(self) -> list[RankDevice]:
        return [CPU if self.polls > 1 else SILENT]

    def end(self) -> AttemptEnd | None:
        return AttemptEnd("killed", 0) if self.polls > 1 else None

    def stop(self) -> None: ...


def test_a_rank_that_dies_young_has_its_device_told_before_its_end(
    run: Run, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower_module, "RankProcesses", _DiesYoung)
    monkeypatch.setattr(follower_module, "BEATS_S", 1000.0)
    heard: list[Any] = []

    def run_leader(link: Link) -> None:
        assert isinstance(link.first(5.0), Hello)
        for attempt in (3, 4):  # the second one's device is news again
            link.send(Start(orders=orders(attempt=attempt), first_rank=1, num_ranks=1, rendezvous_port=80, nodes=(1,)))
            while not heard or not isinstance(heard[-1], Ended):
                heard.append(link.receive(5.0))
            heard.append(None)
        link.send(Exit(exit_code=0))

    follows(run, port, run_leader)
    events = [item.devices if isinstance(item, Beats) else "ended" for item in heard if item]
    assert events == [(SILENT,), (CPU,), "ended"] * 2


def test_a_message_that_is_one_is_still_read() -> None:
    leader, node = linked()
    frame_of(node, json.dumps({"type": "beats", "beats": [BEAT, None], "devices": [CPU, SILENT]}).encode())
    assert isinstance(leader.receive(1.0), Beats)
