"""Whom a node follows, and when it leads."""

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from assay.base.errors import ConfigError
from assay.elastic.nodes import group as group_module
from assay.elastic.nodes import node as node_module
from assay.elastic.nodes.connection import Exit, Message, link_key
from assay.elastic.nodes.node import FENCED_S, LATE_S, LENT_S, STILL_S, RunNode, own_address
from assay.elastic.nodes.server import LEADER_FILE, LeaderAddress, NodeServer
from assay.records.run import Run
from assay.store.commit_log import CommitLog
from assay.store.objects import open_store

FINISHED = Exit(exit_code=0)


class Clock:
    """Time goes by only while a node sleeps."""

    def __init__(self) -> None:
        self.at_s = 0.0
        self.wakes: Callable[[], None] = lambda: None

    def now_s(self) -> float:
        return self.at_s

    def monotonic_s(self) -> float:
        return self.at_s

    def sleep_s(self, seconds: float) -> None:
        self.at_s += seconds
        self.wakes()


@pytest.fixture
def clock(run: Run, monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The run's folder is there, and nothing of this process changes."""
    Path(run.run_dir).mkdir()
    nothing = dict.fromkeys(("signal", "pthread_sigmask"), lambda *_: None)
    monkeypatch.setattr(node_module, "signal", SimpleNamespace(**nothing, SIGTERM=15, SIG_BLOCK=0))
    for module in (node_module, group_module):
        monkeypatch.setattr(module, "fork_context", lambda: None)
    monkeypatch.setattr(node_module, "REPLY_S", 0.3)
    return Clock()


def node_of(run: Run, clock: Clock, index: int | None, **options) -> RunNode:
    return RunNode(run, index=index, clock=clock, **options)  # type: ignore[arg-type]


@contextmanager
def leader(run: Run, *messages: Message, is_named: bool = True) -> Iterator[int]:
    """A leader that says this to whoever comes; its port."""
    with closing(NodeServer("127.0.0.1", 0, lambda: link_key(Path(run.run_dir)))) as server:
        if is_named:
            name_leader(run, server.port)
        is_over = threading.Event()

        def speak() -> None:
            while not is_over.wait(0.01):
                if (peer := server.next_peer()) is not None:
                    for message in messages:
                        peer.link.send(message)
                    peer.link.close()

        thread = threading.Thread(target=speak)
        thread.start()
        yield server.port
        is_over.set()
        thread.join()


def name_leader(run: Run, port: int, host: str = "127.0.0.1") -> Path:
    address = LeaderAddress(host=host, port=port, ranks_per_node=1)
    file = Path(run.run_dir, LEADER_FILE)
    file.write_text(address.model_dump_json())
    return file


@pytest.fixture
def unused_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port: int = unused.getsockname()[1]
        return port


def renew(file: Path, clock: Clock, until_s: float) -> None:
    """Let a leader that no node reaches renew its file every second."""

    def look() -> None:
        if file.exists() and clock.at_s < until_s:
            os.utime(file, (0.0, int(clock.at_s)))

    clock.wakes = look


SILENT_HOST = "a" * 70  # it has no address


@pytest.mark.parametrize(("host", "still_s"), [("127.0.0.1", STILL_S), (SILENT_HOST, LATE_S)])
def test_a_node_that_cannot_reach_a_leader_that_lives_waits_for_it_and_says_so_once(
    run: Run, clock: Clock, unused_port: int, host: str, still_s: float
) -> None:
    notes: list[str] = []
    renew(name_leader(run, unused_port, host), clock, until_s=100.0)
    assert node_of(run, clock, 0, notify=notes.append).next_role() == "leads"
    assert clock.at_s == pytest.approx(99.0 + still_s + FENCED_S, abs=1.0)
    waits, leads = notes
    assert f"this node cannot reach the leader at {host}:{unused_port} (" in waits and "which lives" in waits
    assert f"; the leader named before, at {host}:{unused_port}, does not answer: " in leads


@pytest.mark.parametrize(("host", "still_s"), [("127.0.0.1", STILL_S), (SILENT_HOST, LATE_S)])
def test_a_leader_that_does_not_renew_its_file_is_gone_and_nodes_take_turns(
    run: Run, clock: Clock, unused_port: int, host: str, still_s: float
) -> None:
    name_leader(run, unused_port, host)
    for index in (0, 1, 4):
        clock.at_s = 0.0
        assert node_of(run, clock, index).next_role() == "leads"
        assert clock.at_s == pytest.approx(still_s + index**0.5, abs=0.41)


@pytest.mark.parametrize("is_finished", [True, False])
def test_a_node_that_could_not_reach_a_leader_that_leaves_lets_others_lead_first(
    run: Run, clock: Clock, unused_port: int, is_finished: bool
) -> None:
    file = name_leader(run, unused_port)
    renew(file, clock, until_s=50.0)
    renews = clock.wakes

    def leave() -> None:
        renews()
        if clock.at_s > 30.0:
            file.unlink(missing_ok=True)

    clock.wakes = leave
    node = node_of(run, clock, 0, is_finished=lambda: is_finished and clock.at_s > 30.0)
    assert node.next_role() == ("finished" if is_finished else "leads")
    assert clock.at_s == pytest.approx(30.2 if is_finished else 30.2 + FENCED_S, abs=0.21)


def test_a_leader_that_drops_a_node_at_once_is_asked_again_after_a_pause(run: Run, clock: Clock) -> None:
    heard: list[float] = []
    notes: list[str] = []
    node = node_of(run, clock, 1, notify=notes.append)

    def count() -> None:
        heard.append(clock.at_s)
        if len(heard) == 4:
            node._request_stop()

    with leader(run):
        assert node.next_role(count) == "left"
    assert heard == pytest.approx([0.0, 0.2, 0.4, 0.6])
    assert len(notes) == 1, "it is said once"


def test_without_a_leader_nodes_lead_one_after_another_and_the_last_of_64_soon(run: Run, clock: Clock) -> None:
    waits_s = []
    for index in range(64):
        clock.at_s = 0.0
        assert node_of(run, clock, index).next_role() == "leads"
        waits_s.append(clock.at_s)
    assert waits_s[0] == 0.0 and waits_s[1] == pytest.approx(1.0, abs=0.21) and waits_s[63] < 8.3
    assert waits_s == sorted(waits_s)


@pytest.mark.parametrize(("index", "wait_s"), [(9, 0.0), (12, 1.0), (3, 3**0.5)])
def test_who_is_left_of_a_leaders_nodes_leads_in_their_order(run: Run, clock: Clock, index: int, wait_s: float) -> None:
    node = node_of(run, clock, index)
    node._others = (9, 12, 30)
    assert node.next_role() == "leads"
    assert clock.at_s == pytest.approx(wait_s, abs=0.21)


def test_a_leader_that_the_folder_names_is_followed_and_so_is_one_that_the_command_names(
    run: Run, clock: Clock
) -> None:
    heard = []
    with leader(run, FINISHED):
        assert node_of(run, clock, 0).next_role(lambda: heard.append(True)) == "finished"
    Path(run.run_dir, LEADER_FILE).unlink()
    with leader(run, FINISHED, is_named=False) as port:
        assert node_of(run, clock, 0, leader=f"127.0.0.1:{port}").next_role() == "finished"
    assert heard == [True] and clock.at_s == 0.0


@pytest.mark.parametrize(("others", "expected"), [((), None), ((0,), set()), ((0, 3, 4), {3, 4})])
def test_who_takes_over_expects_the_nodes_that_the_leader_told_it_of(
    run: Run, clock: Clock, others: tuple[int, ...], expected: set[int] | None
) -> None:
    node = node_of(run, clock, 0)
    node._others = others
    with node.leading(CommitLog(open_store("memory:")), ranks_per_node=1, quiet_s=99.0) as group:
        assert group._expected == expected
        assert group.fitting(1) == 1 and (group.fitting(9) == 1) == (expected == set())


def test_who_has_lost_its_leader_leads_when_its_turn_has_come(run: Run, clock: Clock) -> None:
    node = node_of(run, clock, 1)
    with leader(run):
        node._find_leader = once(node._find_leader)  # type: ignore[method-assign]
        assert node.next_role() == "leads"
    assert clock.at_s == pytest.approx(1.0, abs=0.21)


def once(function: Callable[[], object]) -> Callable[[], object]:
    """Nothing is found from the second call on."""
    results = iter([function])
    return lambda: next(results, lambda: None)()


def test_a_node_that_a_leader_sends_away_says_why(run: Run, clock: Clock) -> None:
    notes: list[str] = []
    with leader(run, Exit(reason="another process has come as node 1, on b")):
        assert node_of(run, clock, 1, notify=notes.append).next_role() == "left"
    assert notes == [f"run {run.run_id}: this node leaves: another process has come as node 1, on b"]


def test_a_node_follows_a_leader_that_has_a_newer_key(run: Run, clock: Clock) -> None:
    node = node_of(run, clock, 1)
    link_key(Path(run.run_dir), fresh=True)
    with leader(run, FINISHED):
        assert node.next_role() == "finished"


def test_who_leads_says_why_it_does_not_follow_the_leader_that_the_folder_names(
    run: Run, clock: Clock, unused_port: int
) -> None:
    notes: list[str] = []
    name_leader(run, unused_port)
    assert node_of(run, clock, 0, leader="127.0.0.2", notify=notes.append).next_role() == "leads"
    [note] = notes
    assert note.endswith(
        f"; the leader named before, at 127.0.0.1:{unused_port}, does not answer: [Errno 111] Connection refused"
    )
    Path(run.run_dir, LEADER_FILE).unlink()
    assert node_of(run, clock, 0, leader="127.0.0.2", notify=notes.append).next_role() == "leads"
    assert "named before" not in notes[-1]


def test_another_process_on_the_port_of_a_leader_is_not_waited_for(
    run: Run, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_module, "STILL_S", 0.4)
    with socket.create_server(("127.0.0.1", 0)) as foreign:
        name_leader(run, foreign.getsockname()[1])
        assert node_of(run, clock, 0).next_role() == "leads"


def test_a_node_of_a_finished_run_looks_for_nobody(run: Run, clock: Clock) -> None:
    with leader(run, Exit(exit_code=75)):
        assert node_of(run, clock, 0, is_finished=lambda: True).next_role() == "finished"


def test_a_node_that_is_asked_to_stop_while_it_waits_for_its_turn_does_not_lead(
    run: Run, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = node_of(run, clock, 4)
    clock.wakes = node._request_stop
    assert node.next_role() == "left"
    stopped = node_of(run, clock, 0)
    at_the_last_moment = {"pthread_sigmask": lambda *_: stopped._request_stop(), "SIGTERM": 15, "SIG_BLOCK": 0}
    monkeypatch.setattr(node_module, "signal", SimpleNamespace(**at_the_last_moment))
    assert stopped.next_role() == "left"


def test_a_lent_node_leaves_when_no_leader_has_answered_for_a_while(run: Run, clock: Clock) -> None:
    notes: list[str] = []
    assert node_of(run, clock, None, notify=notes.append).next_role() == "left"
    assert clock.at_s == pytest.approx(LENT_S, abs=0.21) and "no leader answered for 60 s" in notes[0]


def test_a_leader_that_was_fenced_looks_longer_for_the_one_that_fenced_it(run: Run, clock: Clock) -> None:
    node = node_of(run, clock, 0)
    node.was_fenced()
    assert node.next_role() == "leads"
    assert clock.at_s == pytest.approx(FENCED_S, abs=0.21)


def test_nodes_of_a_run_try_one_port_first(run: Run, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    ports = {node_of(run, clock, index)._port for index in (0, 1)}
    other = node_of(run.model_copy(update={"run_id": "other"}), clock, 0)._port
    assert len(ports | {other}) == 2 and all(20_000 <= port < 32_000 for port in (*ports, other))
    monkeypatch.setenv("ASSAY_LINK_PORT", "7")
    assert node_of(run, clock, 0, leader="n0")._port == 7
    assert node_of(run, clock, 0, leader="n0:8")._port == 8
    for wrong in ("n0:x", "n0:65536", "n0:-1"):
        with pytest.raises(ConfigError, match="expected a number below 65536"):
            node_of(run, clock, 0, leader=wrong)


def test_an_address_that_names_nothing_is_refused_and_one_of_a_silent_name_server_is_not(
    run: Run, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for wrong in ("::1", "a" * 70, "not a host"):
        with pytest.raises(ConfigError, match=r"^--address .* has no IPv4 address here.*leave it out"):
            node_of(run, clock, 0, address=wrong)

    def is_silent(*_: object) -> None:
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", is_silent)
    assert node_of(run, clock, 0, address="n0")._host == "n0"


def test_the_address_of_a_node_is_the_one_on_its_way_to_the_leader() -> None:
    assert own_address("127.0.0.1") == "127.0.0.1"
    assert own_address("no.such.host.invalid") == own_address(None)
