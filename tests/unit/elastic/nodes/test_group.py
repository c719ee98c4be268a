import signal
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.base.clock import SystemClock
from assay.base.code_version import code_version
from assay.base.errors import AssayError, ConfigError, DataError, TrainingError
from assay.elastic.environment import environment_here
from assay.elastic.faults import NO_FAULTS
from assay.elastic.nodes import group as nodes_module
from assay.elastic.nodes.connection import (
    BecomeLeader,
    Dismiss,
    Ended,
    Follow,
    Hello,
    LeaderReady,
    Link,
    LinkLost,
    Notice,
    Start,
    accept_link,
    connect_link,
    link_key,
)
from assay.elastic.nodes.group import Follower, NodeGroup, is_other_code, share_out
from assay.elastic.nodes.server import LEADER_FILE, NodeServer, Peer, gather, leader_address
from assay.elastic.processor import processor_here
from assay.elastic.task import AttemptEnd, Orders
from assay.records.failure import Failure
from assay.records.run import Attempt, Run
from assay.records.suspect import Suspect, WrongArithmeticError
from machine import MACHINE

KEY = b"secret"
CLOCK = SystemClock()


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def in_thread(function, *arguments) -> threading.Thread:
    thread = threading.Thread(target=function, args=arguments, daemon=True)
    thread.start()
    return thread


def gathered(num_followers: int, port: int, timeout_s: float) -> dict[int, Peer]:
    with closing(NodeServer(port, KEY)) as server:
        return gather(server, num_followers, CLOCK, timeout_s)[0]


@given(st.integers(0, 64), st.integers(1, 17))
def test_every_rank_is_on_one_node_in_order_and_no_node_has_two_more_than_another(
    world_size: int, num_nodes: int
) -> None:
    shares = share_out(world_size, num_nodes)
    assert [rank for share in shares for rank in share] == list(range(world_size))
    assert len(shares) == num_nodes
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_the_lead_gathers_those_who_know_the_key_though_strangers_come_first(port: int) -> None:
    found: dict = {}
    leader = in_thread(lambda: found.update(gathered(2, port, 20.0)))
    links = []

    def come(node: int) -> None:
        links.append(connect_link("127.0.0.1", port, KEY, CLOCK, timeout_s=20.0))
        here = {"processor": processor_here({}), "environment": environment_here({})}
        links[-1].send(Hello(node=node, host="there", code_version="v", **here))

    in_thread(come, 1).join()
    with socket.create_connection(("127.0.0.1", port)):  # says nothing
        with pytest.raises(TrainingError, match=r"digest|did not answer"):
            connect_link("127.0.0.1", port, b"guess", CLOCK, timeout_s=0.1)
        in_thread(come, 2).join()
        leader.join(20)
    assert set(found) == {1, 2}


def test_a_node_that_does_not_come_is_named(port: int) -> None:
    with pytest.raises(TrainingError, match=r"node 1, 2 did not connect within 0 s"):
        gathered(2, port, 0.3)


def test_a_port_that_is_taken_is_one_clear_error() -> None:
    with socket.create_server(("", 0)) as acquired:
        number = acquired.getsockname()[1]
        with pytest.raises(TrainingError, match=rf"port {number}.*ASSAY_LINK_PORT"):
            gathered(1, number, 1.0)


def test_messages_arrive_in_order_and_the_end_of_a_link_is_noticed(port: int) -> None:
    ends = []
    with socket.create_server(("127.0.0.1", port)) as server:
        thread = in_thread(lambda: ends.append(accept_link(server.accept()[0], KEY)))
        ours = connect_link("127.0.0.1", port, KEY, CLOCK, timeout_s=20.0)
        thread.join()
    ours.send(Notice(type="stop"))
    ours.send(Notice(type="finished"))
    assert ours.receive(0.0) is None
    ours.close()
    (expected,) = ends
    assert [expected.receive(1.0), expected.receive(1.0)] == [Notice(type="stop"), Notice(type="finished")]
    with pytest.raises(LinkLost):
        expected.receive(1.0)


SUSPECT = Suspect(rank=1, node="n", device="cpu", step=3, lane=0, is_certain=True)


@pytest.mark.parametrize(
    "error", [None, DataError("shard-0007 is gone"), TrainingError("x"), WrongArithmeticError("x", (SUSPECT,))]
)
def test_how_ranks_ended_is_told_with_the_error_that_a_person_can_act_on(error: AssayError | None) -> None:
    failure = Failure(failure_kind="data_error", run_id="r", attempt=2, rank=3, signature="s", text="broke")
    end = AttemptEnd("failed", 1, failure=failure, error=error, stalled_s=1.5)
    events = Ended.model_validate_json(Ended(end=end).model_dump_json()).end
    assert replace(events, error=None) == replace(end, error=None)
    assert (type(events.error), str(events.error)) == (type(error), str(error))
    assert getattr(events.error, "suspects", ()) == getattr(error, "suspects", ())


def test_all_nodes_get_the_same_key_and_nobody_else_can_read_it(tmp_path: Path) -> None:
    assert link_key(tmp_path) == link_key(tmp_path)
    assert len(link_key(tmp_path)) == 64
    assert [path.name for path in tmp_path.iterdir()] == ["link.key"]
    assert stat.S_IMODE((tmp_path / "link.key").stat().st_mode) == 0o600


def test_a_key_that_came_with_the_folder_is_replaced_when_a_job_is_submitted(tmp_path: Path) -> None:
    (tmp_path / "link.key").write_text("known to whoever wrote this run")
    ours = link_key(tmp_path, fresh=True)
    assert len(ours) == 64
    assert link_key(tmp_path) == ours
    assert stat.S_IMODE((tmp_path / "link.key").stat().st_mode) == 0o600


def until(is_so: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


class Coming:
    """Nodes that come to the lead of a run, and only talk."""

    def __init__(self, run: Run, port: int) -> None:
        self._run, self._port = run, port
        self.links: list[Link] = []

    def comes(self, node: int | None, host: str, version: str = "") -> Link:
        link = connect_link("127.0.0.1", self._port, link_key(Path(self._run.run_dir)), CLOCK, timeout_s=20.0)
        code = version or code_version()
        here = {"processor": processor_here(), "environment": environment_here({})}
        link.send(Hello(node=node, host=host, code_version=code, **here))
        self.links.append(link)
        return link


@pytest.fixture
def coming(run: Run, port: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Coming]:
    monkeypatch.setattr(nodes_module, "fork_context", lambda: None)
    monkeypatch.setattr(socket, "gethostname", lambda: "lead")
    Path(run.run_dir).mkdir()
    come = Coming(run, port)
    yield come
    for link in come.links:
        link.close()


@pytest.fixture
def led(run: Run, port: int, coming: Coming) -> Iterator[tuple[NodeGroup, Link]]:
    """The lead of two nodes with room for two ranks each, and the other one's end of the link."""
    links: list[Link] = []
    thread = in_thread(lambda: links.append(coming.comes(1, "b")))
    group = NodeGroup(run, num_nodes=2, host="127.0.0.1", port=port, ranks_per_node=2, clock=CLOCK)
    thread.join()
    yield group, links[0]
    group.close()


def test_a_node_that_comes_waits_outside_until_an_attempt_begins(led, coming: Coming) -> None:
    group, _ = led
    assert (group.fitting(8), group.hosts(4)) == (4, ["lead", "lead", "b", "b"])
    lent = [coming.comes(None, "c"), coming.comes(None, "d")]
    until(lambda: group.room(8) == 8)
    assert group.room(5) == 5 and len(group.hosts(4)) == 4 and "c" not in group.hosts(4)
    assert group.fitting(8) == 8
    assert sorted(group.hosts(8)) == ["b", "b", "c", "c", "d", "d", "lead", "lead"]
    lent[0].close()
    assert group.fitting(8) == 6 and "c" not in group.hosts(6)


def test_a_node_that_was_asked_to_stop_is_let_go_when_the_attempt_is_over(led) -> None:
    group, link = led
    link.send(Notice(type="leave"))
    time.sleep(0.1)
    assert group.fitting(4) == 2 and group.leaving() == []
    assert link.receive(1.0) == Dismiss()
    with pytest.raises(LinkLost):
        link.receive(1.0)


def test_a_node_for_which_there_are_no_ranks_is_let_go_at_once(led, coming: Coming) -> None:
    group, link = led
    group._busy = {0, 1}
    lent = coming.comes(None, "c")
    until(lambda: group.room(8) == 6)
    assert group.fitting(2) == 2
    group._busy = {0, 1}  # as an attempt on two ranks leaves it
    lent.send(Notice(type="leave"))
    link.send(Notice(type="leave"))
    until(lambda: group.room(8) == 4)
    assert lent.receive(1.0) == Dismiss() and link.receive(0.0) is None


def test_a_node_that_the_cluster_wants_back_leaves_and_one_that_is_lent_is_none_of_its_nodes(
    led, coming: Coming
) -> None:
    group, link = led
    coming.comes(None, "c")
    until(lambda: group.room(8) == 6)
    assert group.fitting(8) == 6 and group.active_nodes() == {0, 1}
    group.mark_drained(frozenset({2}))
    assert group.leaving() == [], "the one that is lent has that number here"
    group.mark_drained(frozenset({1, 2}))
    assert group.leaving() == ["node 1 (b)"]
    assert group.fitting(8) == 4 and group.active_nodes() == {0}
    assert link.receive(1.0) == Dismiss()


def test_who_waits_outside_may_leave_and_a_link_that_breaks_there_is_no_loss(led, coming: Coming) -> None:
    group, _ = led
    leaves, breaks = coming.comes(None, "c"), coming.comes(None, "d")
    until(lambda: group.room(8) == 8)
    leaves.send(Notice(type="leave"))
    breaks.close()
    until(lambda: group.room(8) == 4)
    assert leaves.receive(1.0) == Dismiss()
    assert group.fitting(8) == 4


def test_a_node_that_comes_back_takes_its_own_place(led, coming: Coming) -> None:
    group, first = led
    again = coming.comes(1, "b")
    until(lambda: group.room(8) == 4 and len(group._waiting_peers.waiting()) == 1)
    assert group.fitting(8) == 4
    with pytest.raises(LinkLost):
        first.receive(1.0)
    assert again.receive(0.0) is None


def test_a_node_with_other_code_is_told_why_it_is_not_taken_in(led, coming: Coming) -> None:
    group, _ = led
    link = coming.comes(None, "c", version="0.0.1")
    output: list = []
    until(lambda: group.room(8) == 4 and (output.append(link.receive(0.0)) or output[-1] is not None))
    assert isinstance(output[-1], Dismiss)
    assert "this node (c) has assay 0.0.1, and node 0 (lead) has" in output[-1].refused
    assert group.fitting(8) == 4


@pytest.fixture
def led_three(run: Run, port: int, coming: Coming) -> Iterator[tuple[NodeGroup, list[Link]]]:
    """The lead of three nodes, to which a fourth is lent, and the others' ends of the links."""
    links: list[Link] = []
    thread = in_thread(lambda: links.extend(coming.comes(node, host) for node, host in ((1, "b"), (2, "c"))))
    group = NodeGroup(run, num_nodes=3, host="127.0.0.1", port=port, ranks_per_node=1, clock=CLOCK)
    thread.join()
    links.append(coming.comes(None, "d"))
    until(lambda: group.room(8) == 4)
    yield group, links
    group.close()


def handing_over(group: NodeGroup) -> tuple[threading.Thread, list[str | None]]:
    names: list[str | None] = []
    return in_thread(lambda: names.append(group.transfer_leadership())), names


def test_a_lead_that_leaves_has_the_next_node_lead_and_the_others_follow_it(led_three, run) -> None:
    group, (first, second, lent) = led_three
    thread, names = handing_over(group)
    assert first.receive(5.0) == BecomeLeader(host="127.0.0.1", others=(2,), num_lent=1)
    first.send(LeaderReady(port=1234))
    for link in (first, second, lent):
        assert link.receive(5.0) == Follow(host="127.0.0.1", port=1234)
        link.close()
    thread.join(5)
    assert names == ["node 1 (b)"]
    group.close()
    assert (Path(run.run_dir) / LEADER_FILE).exists(), "it is the next lead's"


def test_who_was_asked_to_stop_as_well_or_is_gone_does_not_lead(led_three, coming: Coming) -> None:
    group, (first, second, lent) = led_three
    first.send(Notice(type="leave"))
    time.sleep(0.1)
    thread, names = handing_over(group)
    assert second.receive(5.0) == BecomeLeader(host="127.0.0.1", others=(), num_lent=1)
    second.close()
    thread.join(5)
    assert names == [None] and first.receive(1.0) == Dismiss() and lent.receive(1.0) == Dismiss()


def test_a_node_that_is_lent_never_leads_and_the_run_ends(led_three) -> None:
    group, links = led_three
    assert group.fitting(4) == 4
    group.leaves(1)
    group.leaves(2)
    assert group.transfer_leadership() is None
    group.close()
    assert [link.receive(1.0) for link in links] == [Notice(type="finished")] * 3


@pytest.mark.parametrize(
    ("peer_version", "is_other"),
    [
        ("0.1.0+gabc", False),
        ("0.1.0", False),
        ("0.1.0+gabd", True),
        ("0.1.0+gabc.dirty", True),
        ("0.2.0", True),
    ],
)
def test_code_is_other_code_as_far_as_both_know(peer_version: str, is_other: bool) -> None:
    """A node without git knows its release."""
    assert is_other_code(peer_version, "0.1.0+gabc") is is_other_code("0.1.0+gabc", peer_version) is is_other


def test_followers_with_other_code_are_refused_before_anything_is_begun(run, port, coming: Coming) -> None:
    in_thread(coming.comes, 1, "b", "0.0.1")
    with pytest.raises(ConfigError, match=r"node 1 \(b\) has assay 0.0.1"):
        NodeGroup(run, num_nodes=2, host="127.0.0.1", port=port, ranks_per_node=1, clock=CLOCK)
    with socket.create_server(("", port)):
        pass  # and the port is free again


def test_where_a_run_takes_nodes_in_stands_in_its_folder_while_it_is_led(led, run, port: int) -> None:
    group, link = led
    assert leader_address(Path(run.run_dir)).port == port
    group.close()
    assert link.receive(1.0) == Notice(type="finished")
    with pytest.raises(ConfigError, match=rf"accepts no nodes now.*{LEADER_FILE}"):
        leader_address(Path(run.run_dir))


class _StopsOnRequest:
    """Ranks that have committed and left as soon as they are told to."""

    def __init__(self, *_: object) -> None:
        self.stop_requests: list[int] = []

    def wait_for_news(self, timeout_s: float) -> None:
        time.sleep(0.01)

    def beats(self) -> list:
        return []

    def devices(self) -> list[str]:
        return []

    def signal(self, number: int) -> None:
        self.stop_requests.append(number)

    def end(self) -> AttemptEnd | None:
        return AttemptEnd("preempted", 1, message="left") if self.stop_requests else None

    def stop(self) -> None: ...


def test_a_follower_that_is_asked_to_stop_says_so_before_its_ranks_end_and_leaves_when_it_is_let_go(
    run, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    handlers: list = []
    Path(run.run_dir).mkdir()
    monkeypatch.setattr(nodes_module, "RankProcesses", _StopsOnRequest)
    monkeypatch.setattr(nodes_module, "fork_context", lambda: None)
    monkeypatch.setattr(signal, "signal", lambda number, handler: handlers.append((number, handler)))
    heard: list = []

    def run_leader() -> None:
        link = accept_link(server.accept()[0], link_key(Path(run.run_dir)))
        heard.append(link.first(5.0))
        link.send(a_start())
        handlers[0][1]()
        while not isinstance(heard[-1], Ended):
            heard.append(link.receive(5.0))
        link.send(Notice(type="stop"))
        heard.append(link.receive(5.0))
        link.send(Dismiss())

    with socket.create_server(("127.0.0.1", port)) as server:
        thread = in_thread(run_leader)
        Follower(run, node=1, host="127.0.0.1", port=port, clock=CLOCK).follow()
        thread.join(10)
    kinds = [item.type for item in heard if item is not None and item.type != "beats"]
    assert kinds == ["hello", "leave", "ended", "stopped"]
    assert handlers[0][0] == signal.SIGTERM


def a_start() -> Start:
    attempt = Attempt(run_id="r", attempt=1, world_size=2, start_step=0, started_s=0.0, **MACHINE)
    orders = Orders(attempt=attempt, commit=None, faults=NO_FAULTS, parallel="ddp", failure_s=1.0)
    return Start(orders=orders, first_rank=1, num_ranks=1, rendezvous="tcp://127.0.0.1:80")


def test_a_node_that_is_refused_says_why(run, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    Path(run.run_dir).mkdir()
    monkeypatch.setattr(nodes_module, "fork_context", lambda: None)
    monkeypatch.setattr(signal, "signal", lambda *_: None)

    def run_leader() -> None:
        link = accept_link(server.accept()[0], link_key(Path(run.run_dir)))
        link.first(5.0)
        link.send(Dismiss(refused="it has another processor"))

    with socket.create_server(("127.0.0.1", port)) as server:
        in_thread(run_leader)
        with pytest.raises(ConfigError, match="run 'r': it has another processor"):
            Follower(run, node=None, host="127.0.0.1", port=port, clock=CLOCK).follow()
