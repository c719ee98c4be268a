import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.base.clock import SystemClock
from assay.base.code_version import code_version
from assay.base.errors import AssayError, ConfigError, DataError, FencedError, StoreError, TrainingError
from assay.elastic.environment import environment_here
from assay.elastic.faults import NO_FAULTS
from assay.elastic.nodes import follower as follower_module
from assay.elastic.nodes import group as nodes_module
from assay.elastic.nodes.connection import (
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
from assay.elastic.nodes.follower import Departure, Follower
from assay.elastic.nodes.group import NodeGroup, is_other_code, share_out
from assay.elastic.nodes.server import (
    LEADER_FILE,
    LeaderAddress,
    LeaderFile,
    NodeServer,
    Peer,
    last_renewal,
    leader_address,
    read_leader,
)
from assay.elastic.processor import processor_here
from assay.elastic.task import AttemptEnd, Orders
from assay.records.failure import Failure
from assay.records.run import Attempt, Run
from assay.records.suspect import Suspect, WrongArithmeticError
from assay.store.commit_log import CommitLog
from assay.store.objects import open_store
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


@contextmanager
def arrivals(server: NodeServer, count: int) -> Iterator[list[Peer]]:
    found: list[Peer] = []
    until(lambda: found.extend(filter(None, [server.next_peer()])) or len(found) == count)
    yield found
    for peer in found:
        peer.link.close()


@given(st.integers(0, 64), st.integers(1, 17))
def test_every_rank_is_on_one_node_in_order_and_no_node_has_two_more_than_another(
    world_size: int, num_nodes: int
) -> None:
    shares = share_out(world_size, num_nodes)
    assert [rank for share in shares for rank in share] == list(range(world_size))
    assert len(shares) == num_nodes
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_the_lead_takes_in_those_who_know_the_key_though_strangers_come_first(port: int) -> None:
    with closing(NodeServer("", port, lambda: KEY)) as server:
        links = [connect_link("127.0.0.1", port, KEY, timeout_s=20.0)]
        with socket.create_connection(("127.0.0.1", port)):  # says nothing
            with pytest.raises(LinkLost):
                connect_link("127.0.0.1", port, b"guess", timeout_s=0.5)
            links.append(connect_link("127.0.0.1", port, KEY, timeout_s=20.0))
            for node, link in enumerate(links):
                here = {"processor": processor_here({}), "environment": environment_here({})}
                link.send(Hello(node=node, host="there", code_version="v", **here))
            with arrivals(server, 2) as found:
                assert {peer.node for peer in found} == {0, 1}


def test_a_lead_whose_port_is_taken_listens_on_another_one() -> None:
    with socket.create_server(("", 0)) as acquired:
        number = acquired.getsockname()[1]
        with closing(NodeServer("", number, lambda: KEY)) as server:
            assert server.port != number
            connect_link("127.0.0.1", server.port, KEY, timeout_s=20.0).close()


def test_a_lead_listens_on_its_own_address_only_and_on_all_if_that_is_none_of_this_machine(port: int) -> None:
    with closing(NodeServer("127.0.1.3", port, lambda: KEY)):
        connect_link("127.0.1.3", port, KEY, timeout_s=20.0).close()
        with pytest.raises(LinkLost, match="refused"):
            connect_link("127.0.0.1", port, KEY, timeout_s=20.0)
    with closing(NodeServer("192.0.2.1", port, lambda: KEY)):
        connect_link("127.0.0.1", port, KEY, timeout_s=20.0).close()


@pytest.mark.parametrize("banner", [b"", b"SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u3\r\n", b"x" * 500])
def test_another_process_on_the_port_of_a_lead_costs_a_short_time(port: int, banner: bytes) -> None:
    def speak() -> None:
        accepted, _ = foreign.accept()
        with accepted:
            accepted.sendall(banner)
            is_over.wait(10)

    is_over = threading.Event()
    with socket.create_server(("127.0.0.1", port)) as foreign:
        thread = in_thread(speak)
        began_s = time.monotonic()
        with pytest.raises(LinkLost):
            connect_link("127.0.0.1", port, KEY, timeout_s=1.0)
        assert time.monotonic() - began_s < 1.7
        is_over.set()
        thread.join(10)


def test_a_lead_shows_that_it_lives(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("assay.elastic.nodes.server.ALIVE_S", 0.05)
    with closing(NodeServer("", port, lambda: KEY)) as server:
        link = connect_link("127.0.0.1", port, KEY, timeout_s=20.0)
        here = {"processor": processor_here({}), "environment": environment_here({})}
        link.send(Hello(node=1, host="there", code_version="v", **here))
        with arrivals(server, 1) as [peer]:
            for _ in range(3):
                assert link.receive(5.0) == Notice(type="alive")
                peer.link.send(Notice(type="stop"))  # its own messages keep their order
                until(lambda: link.receive(0.1) == Notice(type="stop"))


def test_messages_arrive_in_order_and_the_end_of_a_link_is_noticed(port: int) -> None:
    ends = []
    with socket.create_server(("127.0.0.1", port)) as server:
        thread = in_thread(lambda: ends.append(accept_link(server.accept()[0], KEY)))
        ours = connect_link("127.0.0.1", port, KEY, timeout_s=20.0)
        thread.join()
    ours.send(Notice(type="stop"))
    ours.send(Notice(type="leave"))
    assert ours.receive(0.0) is None
    ours.close()
    (expected,) = ends
    assert [expected.receive(1.0), expected.receive(1.0)] == [Notice(type="stop"), Notice(type="leave")]
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


@pytest.mark.parametrize(
    ("error", "kind"), [(PermissionError(13, "Permission denied"), ConfigError), (OSError(116, "Stale"), StoreError)]
)
def test_a_key_that_cannot_be_read_or_is_damaged_is_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError, kind: type[AssayError]
) -> None:
    def fails(_: Path) -> bytes:
        raise error

    (tmp_path / "link.key").write_text("")
    with pytest.raises(ConfigError, match=r"link.key: the key of the run's nodes is damaged.*remove it"):
        link_key(tmp_path)
    monkeypatch.setattr(Path, "read_bytes", fails)
    with pytest.raises(kind, match=rf"link.key: .* cannot be read or written: {error.strerror}.*as the user"):
        link_key(tmp_path)


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
        link = connect_link("127.0.0.1", self._port, link_key(Path(self._run.run_dir)), timeout_s=20.0)
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


def led_by(run: Run, port: int, *, quiet_s: float = 0.0, **options) -> NodeGroup:
    log = CommitLog(open_store(run.store_url))
    return NodeGroup(run, log, host="127.0.0.1", port=port, ranks_per_node=2, clock=CLOCK, quiet_s=quiet_s, **options)


def next_message(link: Link, timeout_s: float = 5.0):
    """The next one apart from signs of life; None if there is none in time."""
    deadline_s = time.monotonic() + timeout_s
    while (left_s := deadline_s - time.monotonic()) > 0 or timeout_s == 0.0:
        message = link.receive(max(0.0, left_s))
        if message is None or message != Notice(type="alive"):
            return message
    return None


@pytest.fixture
def led(run: Run, port: int, coming: Coming) -> Iterator[tuple[NodeGroup, Link]]:
    """The lead of two nodes with room for two ranks each, and the other one's end of the link."""
    group = led_by(run, port)
    link = coming.comes(1, "b")
    until(lambda: group.fitting(8) == 4)
    yield group, link
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
    assert next_message(link) == Exit()
    with pytest.raises(LinkLost):
        next_message(link)


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
    assert next_message(lent) == Exit() and next_message(link, 0.0) is None


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
    assert next_message(link) == Exit()


def test_who_waits_outside_may_leave_and_a_link_that_breaks_there_is_no_loss(led, coming: Coming) -> None:
    group, _ = led
    leaves, breaks = coming.comes(None, "c"), coming.comes(None, "d")
    until(lambda: group.room(8) == 8)
    leaves.send(Notice(type="leave"))
    breaks.close()
    until(lambda: group.room(8) == 4)
    assert next_message(leaves) == Exit()
    assert group.fitting(8) == 4


def test_a_node_with_the_index_of_the_lead_is_another_node(led, coming: Coming) -> None:
    group, _ = led
    coming.comes(0, "c")
    until(lambda: group.room(8) == 6)
    assert group.fitting(8) == 6 and group.hosts(3) == ["lead", "b", "c"]


def test_a_node_that_comes_back_takes_its_own_place(led, coming: Coming) -> None:
    group, first = led
    again = coming.comes(1, "b")
    until(lambda: group.room(8) == 4 and len(group._waiting_peers()) == 1)
    assert group.fitting(8) == 4
    # A second process with this index; the first one would come back for ever if it were not told.
    assert next_message(first) == Exit(exit_code=75, reason="another process has come as node 1, on b")
    with pytest.raises(LinkLost):
        next_message(first)
    assert next_message(again, 0.0) is None


@pytest.mark.parametrize("has_started", [False, True])
def test_a_node_with_other_code_is_told_why_it_is_not_taken_in(led, coming: Coming, has_started: bool) -> None:
    group, _ = led
    group._has_started = has_started
    link = coming.comes(None, "c", version="0.0.1")
    output: list = []
    until(lambda: group.room(8) == 4 and (output.append(next_message(link, 0.0)) or output[-1] is not None))
    assert isinstance(output[-1], Exit) and output[-1].exit_code == (1 if has_started else 2)
    assert "a lent node (c) has assay 0.0.1, and node 0 (lead) has" in output[-1].reason
    assert group.fitting(8) == 4


def test_a_lead_that_leaves_ends_all_links_and_who_stays_may_lead_apart_from_lent_nodes(
    run: Run, port: int, coming: Coming
) -> None:
    group = led_by(run, port, node=1)
    links = [coming.comes(node, host) for node, host in ((0, "b"), (2, "c"), (3, "d"), (None, "e"))]
    until(lambda: group.fitting(99) == 10)
    links[1].send(Notice(type="leave"))
    links[2].close()
    until(lambda: group.staying() == ["node 0 (b)"])
    group.close()
    for index in (0, 3):
        with pytest.raises(LinkLost):
            next_message(links[index])
    assert read_leader(Path(run.run_dir)) is None


def test_all_nodes_are_told_with_which_code_the_run_ends_and_the_lead_waits_until_they_know(
    led, coming: Coming
) -> None:
    group, link = led
    waits = coming.comes(None, "c")
    until(lambda: group.room(8) == 6)
    thread = in_thread(group.end, 2, "it has other rows")
    for item in (link, waits):
        assert next_message(item) == Exit(exit_code=2, reason="it has other rows")
        assert thread.is_alive()
        item.close()
    thread.join(5)
    assert not thread.is_alive()


def test_a_run_begins_with_fewer_ranks_only_once_no_further_node_has_come_for_a_while(
    run: Run, port: int, coming: Coming
) -> None:
    group = led_by(run, port, quiet_s=0.5)
    assert group.fitting(8) == 0
    coming.comes(1, "b")
    until(lambda: group.room(8) == 4)
    arrived_s = time.monotonic()
    assert group.fitting(8) == 0 and group.fitting(4) == 4, "all that was asked for fits"
    until(lambda: group.fitting(8) == 4)
    assert time.monotonic() - arrived_s >= 0.45
    group.close()


def test_who_takes_over_waits_for_the_nodes_of_the_lead_before_and_for_no_others(
    run: Run, port: int, coming: Coming
) -> None:
    group = led_by(run, port, node=1, expected=[0, 3], quiet_s=60.0)
    coming.comes(0, "b")
    until(lambda: group.room(8) == 4)
    assert group.fitting(8) == 0
    coming.comes(3, "c")
    until(lambda: group.fitting(8) == 6)
    group.close()


def begin(group: NodeGroup, number: int) -> None:
    """As `start` does, without ranks."""
    group._attempt, group._has_started = number, True


def test_of_two_leads_the_one_that_has_begun_stays_and_the_other_one_follows(
    run: Run, port: int, coming: Coming, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes_module, "LOOK_S", 0.0)
    first, second = led_by(run, port), led_by(run, 0, node=1)  # the folder names the second one
    CommitLog(open_store(run.store_url)).begin_attempt(world_size=2, now_s=0.0)
    begin(first, 1)
    assert first.leaving() == []
    assert read_leader(Path(run.run_dir)) == first._file.address, "it says where it is"
    with pytest.raises(FencedError, match="attempt 1 and leads"):
        second.fitting(8)
    second.close()
    assert first.leaving() == [] and read_leader(Path(run.run_dir)) == first._file.address
    first.close()


def test_of_two_leads_that_gather_the_one_that_the_folder_names_stays(
    run: Run, port: int, coming: Coming, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes_module, "LOOK_S", 0.0)
    first, second = led_by(run, port), led_by(run, 0, node=1)
    assert second.fitting(4) == 2
    with pytest.raises(FencedError, match=rf"127.0.0.1:{second._file.address.port} leads"):
        first.fitting(4)
    first.close()
    assert read_leader(Path(run.run_dir)) == second._file.address, "it is not the first one's to remove"
    second.close()


def test_a_lead_that_gathers_follows_the_one_that_the_folder_names_though_it_cannot_reach_it(
    run: Run, port: int, coming: Coming, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes_module, "LOOK_S", 0.0)
    group = led_by(run, port)
    other = LeaderAddress(host="127.0.0.9", port=1, ranks_per_node=2)
    Path(run.run_dir, LEADER_FILE).write_text(other.model_dump_json())
    with pytest.raises(FencedError, match=r"127.0.0.9:1 leads"):
        group.fitting(4)
    group.close()
    assert read_leader(Path(run.run_dir)) == other


def test_a_leader_renews_the_file_that_names_it_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("assay.elastic.nodes.server.ALIVE_S", 0.02)
    ours, other = (LeaderAddress(host=host, port=1, ranks_per_node=2) for host in ("a", "b"))
    file = LeaderFile(tmp_path, ours)
    written = last_renewal(tmp_path)
    until(lambda: last_renewal(tmp_path) != written)
    (tmp_path / LEADER_FILE).write_text(other.model_dump_json())
    assert_stands_still(tmp_path)
    file.remove()
    assert read_leader(tmp_path) == other
    file.write()
    assert_stands_still(tmp_path)
    file.remove()
    assert last_renewal(tmp_path) is None


def assert_stands_still(folder: Path) -> None:
    time.sleep(0.1)
    seen = last_renewal(folder)
    time.sleep(0.2)
    assert last_renewal(folder) == seen


def test_a_node_with_a_newer_key_is_taken_in_by_a_leader_that_has_begun_with_the_older_one(led, coming: Coming) -> None:
    group, link = led
    link_key(Path(coming._run.run_dir), fresh=True)  # somebody submits the run again
    coming.comes(2, "c")
    until(lambda: group.room(8) == 6)
    group.leaves(1)
    assert group.fitting(8) == 4 and next_message(link) == Exit(), "older links go on"


def test_a_lead_that_was_replaced_while_its_ranks_run_notices_it(
    led, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes_module, "LOOK_S", 0.0)
    group, _ = led
    group._next_look_s = 0.0
    begin(group, 1)
    CommitLog(open_store(run.store_url)).begin_attempt(world_size=2, now_s=0.0)
    assert group.leaving() == []
    CommitLog(open_store(run.store_url)).begin_attempt(world_size=2, now_s=0.0)
    address = LeaderAddress(host="127.0.0.9", port=1, ranks_per_node=1)
    Path(run.run_dir, LEADER_FILE).write_text(address.model_dump_json())
    with pytest.raises(FencedError, match="attempt 2 and leads"):
        group.leaving()


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
    group = led_by(run, port)
    coming.comes(1, "b", "0.0.1")
    with pytest.raises(ConfigError, match=r"node 1 \(b\) has assay 0.0.1"):
        until(lambda: group.fitting(8) == 4)
    group.close()
    with socket.create_server(("", port)):
        pass  # and the port is free again


def test_where_a_run_takes_nodes_in_stands_in_its_folder_while_it_is_led(led, run, port: int) -> None:
    group, _ = led
    assert leader_address(Path(run.run_dir)).port == port
    group.close()
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


def follows(
    run: Run, port: int, monkeypatch: pytest.MonkeyPatch, leader: Callable[[Link, Follower], None], node: int | None = 1
) -> Departure:
    """What a follower does while `leader` speaks to it."""
    monkeypatch.setattr(follower_module, "RankProcesses", _StopsOnRequest)
    with socket.create_server(("127.0.0.1", port)) as server:
        accepted: list[Link] = []
        key = link_key(Path(run.run_dir))
        thread = in_thread(lambda: accepted.append(accept_link(server.accept()[0], key)))
        link = connect_link("127.0.0.1", port, key, timeout_s=20.0)
        thread.join()
        follower = Follower(run, link, "127.0.0.1", node=node, context=None, clock=CLOCK)
        speaks = in_thread(leader, accepted[0], follower)
        try:
            return follower.follow(lambda: None)
        finally:
            speaks.join(10)
            accepted[0].close()


def test_a_follower_that_is_asked_to_stop_says_so_before_its_ranks_end_and_leaves_when_it_is_let_go(
    run, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path(run.run_dir).mkdir()
    heard: list = []

    def run_leader(link: Link, follower: Follower) -> None:
        heard.append(link.first(5.0))
        link.send(a_start())
        follower.request_stop()
        while not isinstance(heard[-1], Ended):
            heard.append(link.receive(5.0))
        link.send(Notice(type="stop"))
        heard.append(link.receive(5.0))
        link.send(Exit())

    assert follows(run, port, monkeypatch, run_leader) == "left"
    kinds = [item.type for item in heard if item is not None and item.type != "beats"]
    assert kinds == ["hello", "leave", "ended", "stopped"]


@pytest.mark.parametrize("leaves", ["ends", "is silent"])
def test_a_follower_whose_lead_is_gone_kills_its_ranks_and_knows_who_may_lead(
    run, port: int, monkeypatch: pytest.MonkeyPatch, leaves: str
) -> None:
    Path(run.run_dir).mkdir()
    monkeypatch.setattr(follower_module, "SILENT_S", 0.5)
    followers: list[Follower] = []
    stopped: list[bool] = []
    monkeypatch.setattr(_StopsOnRequest, "stop", lambda ranks: stopped.append(True))

    def run_leader(link: Link, follower: Follower) -> None:
        followers.append(follower)
        link.send(a_start())
        if leaves == "is silent":
            until(lambda: bool(stopped))
        link.close()

    assert follows(run, port, monkeypatch, run_leader) == "no leader"
    assert stopped == [True] and followers[0].candidates == (1, 5)


@pytest.mark.parametrize(("code", "departure"), [(0, "finished"), (75, "left"), (1, None), (2, None)])
def test_a_follower_ends_as_its_lead_does(
    run, port: int, monkeypatch: pytest.MonkeyPatch, code: int, departure: str | None
) -> None:
    Path(run.run_dir).mkdir()

    def run_leader(link: Link, follower: Follower) -> None:
        link.send(Exit(exit_code=code, reason="its rows are gone"))

    if departure is not None:
        assert follows(run, port, monkeypatch, run_leader) == departure
        return
    with pytest.raises(TrainingError, match="run r: its rows are gone") as raised:
        follows(run, port, monkeypatch, run_leader)
    assert raised.value.exit_code == code


def a_start() -> Start:
    attempt = Attempt(run_id="r", attempt=1, world_size=2, start_step=0, started_s=0.0, **MACHINE)
    orders = Orders(attempt=attempt, commit=None, faults=NO_FAULTS, parallel="ddp", failure_s=1.0)
    return Start(orders=orders, first_rank=1, num_ranks=1, rendezvous_port=80, nodes=(1, 5))
