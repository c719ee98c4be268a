import socket
import stat
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.base.clock import SystemClock
from assay.base.errors import AssayError, DataError, TrainingError
from assay.launch.ranks.node_link import Bye, Ended, Hello, LinkLost, Stop, accept_link, connect_link, link_key
from assay.launch.ranks.nodes import _gather, share_out
from assay.launch.ranks.processor import processor_here
from assay.launch.ranks.surroundings import surroundings_here
from assay.launch.ranks.task import AttemptEnd
from assay.records.failure import Failure
from assay.records.suspect import Suspect, WrongArithmeticError

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
    lead = in_thread(lambda: found.update(_gather(2, port, KEY, CLOCK, 20.0)))
    links = []

    def come(node: int) -> None:
        links.append(connect_link("127.0.0.1", port, KEY, CLOCK, timeout_s=20.0))
        here = {"processor": processor_here({}), "surroundings": surroundings_here({})}
        links[-1].send(Hello(node=node, host="there", **here))

    in_thread(come, 1).join()
    with socket.create_connection(("127.0.0.1", port)):  # says nothing
        with pytest.raises(TrainingError, match=r"digest|did not answer"):
            connect_link("127.0.0.1", port, b"guess", CLOCK, timeout_s=0.1)
        in_thread(come, 2).join()
        lead.join(20)
    assert set(found) == {1, 2}


def test_a_node_that_does_not_come_is_named(port: int) -> None:
    with pytest.raises(TrainingError, match=r"node 1, 2 did not come within 0 s"):
        _gather(2, port, KEY, CLOCK, 0.3)


def test_a_port_that_is_taken_is_one_clear_error() -> None:
    with socket.create_server(("", 0)) as taken:
        number = taken.getsockname()[1]
        with pytest.raises(TrainingError, match=rf"port {number}.*ASSAY_LINK_PORT"):
            _gather(1, number, KEY, CLOCK, 1.0)


def test_messages_arrive_in_order_and_the_end_of_a_link_is_noticed(port: int) -> None:
    ends = []
    with socket.create_server(("127.0.0.1", port)) as server:
        thread = in_thread(lambda: ends.append(accept_link(server.accept()[0], KEY)))
        ours = connect_link("127.0.0.1", port, KEY, CLOCK, timeout_s=20.0)
        thread.join()
    ours.send(Stop())
    ours.send(Bye())
    assert ours.receive(0.0) is None
    ours.close()
    (theirs,) = ends
    assert [theirs.receive(1.0), theirs.receive(1.0)] == [Stop(), Bye()]
    with pytest.raises(LinkLost):
        theirs.receive(1.0)


SUSPECT = Suspect(rank=1, node="n", device="cpu", step=3, lane=0, is_certain=True)


@pytest.mark.parametrize(
    "error", [None, DataError("shard-0007 is gone"), TrainingError("x"), WrongArithmeticError("x", (SUSPECT,))]
)
def test_how_ranks_ended_is_told_with_the_error_that_a_person_can_act_on(error: AssayError | None) -> None:
    failure = Failure(failure_kind="data_error", run_id="r", attempt=2, rank=3, signature="s", text="broke")
    end = AttemptEnd("failed", 1, failure=failure, error=error, stalled_s=1.5)
    told = Ended.model_validate_json(Ended(end=end).model_dump_json()).end
    assert replace(told, error=None) == replace(end, error=None)
    assert (type(told.error), str(told.error)) == (type(error), str(error))
    assert getattr(told.error, "suspects", ()) == getattr(error, "suspects", ())


def test_all_nodes_get_the_same_key_and_nobody_else_can_read_it(tmp_path: Path) -> None:
    assert link_key(tmp_path) == link_key(tmp_path)
    assert len(link_key(tmp_path)) == 64
    assert [path.name for path in tmp_path.iterdir()] == ["link.key"]
    assert stat.S_IMODE((tmp_path / "link.key").stat().st_mode) == 0o600


def test_a_key_that_came_with_the_folder_is_replaced_when_a_job_is_submitted(tmp_path: Path) -> None:
    (tmp_path / "link.key").write_text("known to whoever wrote this run")
    ours = link_key(tmp_path, anew=True)
    assert len(ours) == 64
    assert link_key(tmp_path) == ours
    assert stat.S_IMODE((tmp_path / "link.key").stat().st_mode) == 0o600
