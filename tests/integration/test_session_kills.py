"""Kill -9 of server and worker during loops of the official SDK: the client sees what it sees undisturbed."""

import random
from collections.abc import Callable, Mapping
from threading import Timer

import pytest

from full_disk import Disk
from session_service import SessionService
from tinker_judge.judge import LOOPS, ONCE, PATHS, Judge, table
from tinker_judge.proxy import Fault

DAY_S = 86_400.0
FULL_S = 3.0
"""How long a disk is full."""
FIVE_KILLS = {
    "sft": [Fault("kill worker", "optim_step", 3), Fault("kill server", "forward_backward", 5, is_acknowledged=True)],
    "rl": [Fault("kill worker", "asample", 3), Fault("kill server", "save_weights_for_sampler", 4)],
    "dpo": [Fault("kill both", "optim_step", 2)],
}


def judge_loops(
    service: SessionService,
    faults: Mapping[str, list[Fault]],
    callbacks: Mapping[str, Callable[[], None]] | None = None,
) -> None:
    """Assert that the client sees, and the worker stores, what they do undisturbed."""
    kills = {
        "kill worker": service.worker.kill_and_start,
        "kill server": service.server.kill_and_start,
        "kill both": service.kill_all,
    }
    with Judge(service.url, base="tiny").sitting({**kills, **(callbacks or {})}) as judge:
        verdicts = [judge(loop, *of_loop) for loop, of_loop in faults.items()]
    assert [item.verdict for item in verdicts] == ["held"] * len(faults), table(verdicts)
    service.stop()
    states = [str(state) for state in service.newest_states()]
    assert sorted(states) == sorted([*{*states}] * 2) and len(states) == 2 * len(faults), states


def test_a_client_cannot_tell_that_server_and_worker_were_killed(session_service) -> None:
    judge_loops(session_service, FIVE_KILLS)
    assert session_service.num_kills == 6


@pytest.mark.slow
@pytest.mark.parametrize("loop", LOOPS)
def test_clocks_that_jump_and_disks_that_are_full_change_nothing(loop, nursery, disk: Disk, tmp_path) -> None:
    service = SessionService(nursery, tmp_path, disk.folder / "home")

    def fill_disk() -> None:
        disk.fill(reserve=0)
        Timer(FULL_S, disk.make_room).start()

    callbacks = {
        "clocks ahead": lambda: service.set_clocks(DAY_S),
        "clocks back": lambda: service.set_clocks(-DAY_S),
        "disk full": fill_disk,
    }
    paths = PATHS[loop]
    faults = [
        Fault("clocks ahead", "optim_step", 1),
        Fault("clocks back", "forward_backward", 3, is_acknowledged=True),
        Fault("disk full", paths[0], 1),
        Fault("disk full", "optim_step", 3, is_acknowledged=True),
        Fault("kill worker", "optim_step", 4),
    ]
    try:
        judge_loops(service, {loop: faults}, callbacks)
    finally:
        service.stop()


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(20))
def test_a_hundred_kills_at_random(session_service, seed) -> None:
    draw = random.Random(seed)
    loop, faults = LOOPS[seed % len(LOOPS)], dict[tuple[str, int], Fault]()
    while len(faults) < 5:
        path = draw.choice(PATHS[loop])
        number = 1 if path in ONCE else draw.randint(1, 4)
        kind = draw.choice(["kill worker", "kill server", "kill both"])
        faults[path, number] = Fault(kind, path, number, is_acknowledged=draw.random() < 0.5)
    judge_loops(session_service, {loop: [*faults.values()]})
    assert session_service.num_kills >= 5
