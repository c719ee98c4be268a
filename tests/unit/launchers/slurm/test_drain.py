"""When a node is given back, with programs that answer as Slurm's do."""

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from assay.launchers.slurm import drain as slurm_drain
from assay.launchers.slurm.drain import JobNodes, draining, watching_drains

NODES = JobNodes("7", 0, ("n1", "n2", "n3"))


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, programs: Callable[..., None]) -> Path:
    """A folder: `states` is what sinfo prints, `updates` what scontrol was asked for."""
    programs(
        sinfo=f"/bin/cat {tmp_path}/states",
        squeue="echo n[1-3]",
        scontrol=f'case $1 in show) printf "n1\\nn2\\nn3\\n" ;; *) echo "$*" >> {tmp_path}/updates ;; esac',
    )
    set_states(tmp_path, "mixed", "mixed", "allocated")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(slurm_drain, "LOOK_S", 0.02)
    return tmp_path


def set_states(folder: Path, *states: str) -> None:
    (folder / "new").write_text("".join(f"n{number}|{state}\n" for number, state in enumerate(states, start=1)))
    (folder / "new").replace(folder / "states")


def updates(folder: Path) -> list[str]:
    path = folder / "updates"
    return path.read_text().splitlines() if path.exists() else []


def until(is_so: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 10
    while not is_so():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


@pytest.fixture
def requested_steps() -> Iterator[list[int]]:
    """A supervisor that takes SIGTERM, and what it took."""
    acquired: list[int] = []
    previous = signal.signal(signal.SIGTERM, lambda number, _: acquired.append(number))
    yield acquired
    signal.signal(signal.SIGTERM, previous)


def test_a_node_drains_while_it_works_and_when_it_is_idle_or_silent(slurm: Path) -> None:
    set_states(slurm, "draining", "drained*", "drained")
    assert draining(NODES.names) == {"n1", "n2", "n3"}
    set_states(slurm, "mixed", "down*", "idle")
    assert draining(NODES.names) == set()


def test_a_step_knows_its_nodes_and_a_process_outside_has_none(slurm: Path) -> None:
    step = {"SLURM_JOB_ID": "7", "SLURM_NODEID": "1", "SLURM_STEP_NODELIST": "n[1-3]"}
    assert JobNodes.from_environment(step) == JobNodes("7", 1, ("n1", "n2", "n3"))
    assert JobNodes.from_environment({**step, "SLURM_NODEID": ""}) is None
    assert JobNodes.from_environment({}) is None


def test_the_job_gives_a_drained_node_up_once_and_only_when_its_supervisor_has_left(
    slurm: Path, requested_steps: list[int]
) -> None:
    expected: list[frozenset[int]] = []
    present = {0, 1, 2}
    with watching_drains(NODES, on_drained=expected.append, active_nodes=lambda: frozenset(present)):
        set_states(slurm, "mixed", "draining", "mixed")
        until(lambda: expected[-1:] == [frozenset({1})])
        time.sleep(0.1)
        assert updates(slurm) == [], "it is still at work"
        present.remove(1)
        until(lambda: bool(updates(slurm)))
        time.sleep(0.1)
    assert updates(slurm) == ["update JobId=7 NodeList=n1,n3"]
    assert requested_steps == []


def test_whose_own_node_is_drained_is_asked_to_stop_once_and_the_first_node_is_kept(
    slurm: Path, requested_steps: list[int]
) -> None:
    set_states(slurm, "draining", "mixed", "mixed")
    with watching_drains(NODES, active_nodes=lambda: frozenset({1, 2})):
        until(lambda: bool(requested_steps))
        time.sleep(0.1)
    assert requested_steps == [signal.SIGTERM] and updates(slurm) == []


def test_who_would_die_of_the_signal_is_not_sent_it(slurm: Path) -> None:
    set_states(slurm, "draining", "mixed", "mixed")
    previous = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        with watching_drains(NODES):
            time.sleep(0.2)  # the test's process lives
    finally:
        signal.signal(signal.SIGTERM, previous)


@pytest.mark.parametrize("trouble", ["exit 1", "gone"])
def test_a_cluster_that_does_not_answer_stops_nobody(slurm: Path, requested_steps: list[int], trouble: str) -> None:
    (slurm / "sinfo").write_text(f"#!/bin/sh\n{trouble}\n")
    if trouble == "gone":
        (slurm / "sinfo").unlink()
    with watching_drains(NODES):
        time.sleep(0.1)
    assert requested_steps == []
