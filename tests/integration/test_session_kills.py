"""Kill -9 of server, worker and ranks during loops of the official SDK, with another number of ranks at each restart.

The client sees what it sees undisturbed, weights and moments have the same bits, and each request stands once in the
log.
"""

import random
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from threading import Timer

import pytest

from assay.checks.api.judge import ONCE, REQUESTS, TINKER_LOOPS, Judge
from assay.checks.api.proxy import RequestFault
from full_disk import Disk
from session_service import WORLD_SIZES, Commands, SessionService
from variants import slow

DAY_S = 86_400.0
FULL_S = 3.0
"""How long a disk is full."""
LATEST_S = 0.3
"""Longest time from the arrival of a request to a kill at random."""
KILLS = {
    "sft": [
        RequestFault("kill worker", "optim_step", 3),
        RequestFault("kill server", "forward_backward", 5, is_acknowledged=True),
    ],
    "rl": [RequestFault("kill worker", "asample", 3), RequestFault("kill server", "save_weights_for_sampler", 4)],
    "dpo": [RequestFault("kill both", "optim_step", 2), RequestFault("kill rank", "forward_backward", 5)],
}
RANK_KILLS = {
    "sft": ["optim_step", "forward_backward"],
    "rl": ["asample", "save_weights_for_sampler"],
    "dpo": ["forward_backward"],
}
"""Loop -> what a worker executes while it is killed, and then its rank."""


def judge_loops(
    service: SessionService,
    faults: Mapping[str, list[RequestFault]],
    callbacks: Mapping[str, Callable[[], None]] | None = None,
) -> None:
    """Assert that the client sees, and the worker stores, what they do undisturbed."""
    kills = {
        "kill worker": service.worker.kill_and_start,
        "kill server": service.server.kill_and_start,
        "kill both": service.kill_all,
        "kill rank": service.kill_rank,
    }
    with Judge(service.url, base="tiny").sitting({**kills, **(callbacks or {})}) as judge:
        verdicts = [judge(loop, *of_loop) for loop, of_loop in faults.items()]
    assert [item.verdict for item in verdicts] == ["held"] * len(faults), verdicts
    service.stop()
    for found in (service.newest_states(), service.requests()):
        sessions = Counter(str(sorted(of_session.items())) for of_session in found)
        assert [*sessions.values()] == [3] * len(faults), f"two undisturbed sessions and one with faults: {found}"
    for audit in service.audits():
        assert audit.verdict == "pass", audit.problems


@pytest.mark.timeout(900)
@pytest.mark.parametrize("loops", [("dpo",), *slow((*KILLS,))], ids=" ".join)
def test_a_client_cannot_tell_that_server_worker_and_rank_were_killed(session_service, loops) -> None:
    judge_loops(session_service, {loop: KILLS[loop] for loop in loops})
    struck = Counter(fault.kind for loop in loops for fault in KILLS[loop])
    assert session_service.num_kills == struck.total() + struck["kill both"]
    assert len({*session_service.started_sizes}) == 1 + struck["kill both"] + struck["kill worker"]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("nursery")
@pytest.mark.parametrize("loop", RANK_KILLS)
def test_commands_as_a_user_starts_them_are_killed_likewise(loop, tmp_path) -> None:
    service = SessionService(Commands(), tmp_path)
    faults = [RequestFault(kind, path, 2) for path in RANK_KILLS[loop] for kind in ("kill worker", "kill rank")]
    try:
        judge_loops(service, {loop: faults})
    finally:
        service.stop()


@pytest.mark.slow
@pytest.mark.parametrize("loop", TINKER_LOOPS)
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
    paths = REQUESTS[loop]
    faults = [
        RequestFault("clocks ahead", "optim_step", 1),
        RequestFault("clocks back", "forward_backward", 3, is_acknowledged=True),
        RequestFault("disk full", paths[0], 1),
        RequestFault("disk full", "optim_step", 3, is_acknowledged=True),
        RequestFault("kill worker", "optim_step", 4),
    ]
    try:
        judge_loops(service, {loop: faults}, callbacks)
    finally:
        service.stop()


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(20))
def test_a_hundred_kills_at_random(nursery, seed, tmp_path) -> None:
    commit_after_s = 60.0 * (seed % 2)  # 0: restarts begin with the step before, else with the first request
    service = SessionService(nursery, tmp_path, world_sizes=sizes_at_random(seed), commit_after_s=commit_after_s)
    try:
        judge_loops(service, *faults_at_random(service, seed))
    finally:
        service.stop()
    assert service.num_kills >= 5


def sizes_at_random(seed: int) -> list[int]:
    """Draw numbers of ranks, no two alike in succession."""
    draw, sizes = random.Random(seed), [1]
    while len(sizes) < 20:
        sizes.append(draw.choice([size for size in WORLD_SIZES if size != sizes[-1]]))
    return sizes


def faults_at_random(
    service: SessionService, seed: int
) -> tuple[dict[str, list[RequestFault]], dict[str, Callable[[], None]]]:
    """Draw five kills in one loop, each at some time after a request of it."""
    draw = random.Random(seed)
    loop, faults, callbacks = (
        TINKER_LOOPS[seed % len(TINKER_LOOPS)],
        dict[tuple[str, int], RequestFault](),
        dict[str, Callable[[], None]](),
    )
    kills = {
        "worker": service.worker.kill_and_start,
        "server": service.server.kill_and_start,
        "both": service.kill_all,
        # A request fails once three executions of it ended a rank, so no more than two are killed.
        "first rank": partial(service.kill_rank, 0),
        "last rank": service.kill_rank,
    }
    while len(faults) < 5:
        path = draw.choice(REQUESTS[loop])
        number = 1 if path in ONCE else draw.randint(1, 4)
        if (path, number) in faults:
            continue
        name = draw.choice([*kills])
        callbacks[f"{len(faults)}: {name}"] = partial(kill_later, draw.uniform(0, LATEST_S), kills[name])
        faults[path, number] = RequestFault(f"{len(faults)}: {name}", path, number, is_acknowledged=draw.random() < 0.5)
        if "rank" in name:
            del kills[name]
    return {loop: [*faults.values()]}, callbacks


def kill_later(after_s: float, kill: Callable[[], None]) -> None:
    time.sleep(after_s)
    kill()
