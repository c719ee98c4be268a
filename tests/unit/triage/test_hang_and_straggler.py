import signal
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from assay.reporting.views.triage_statements import silence_text
from assay.store.heartbeat import Beat, Heartbeats
from assay.triage.hang import (
    ALL_STACKS_SIGNAL,
    MAIN_STACK_SIGNAL,
    SLOW_PHASE_LIMIT_S,
    STOPPED,
    HungRank,
    are_stacks_whole,
    has_main_stack,
    process_state,
    request_all_stacks,
    request_flight_dump,
    request_main_stack,
)
from assay.triage.hang import find_hung_rank as find
from assay.triage.straggler import SLOW_WINDOWS, WINDOW_STEPS, StragglerWatch


def beat(step=10, phase="communication", at_s=100.0, own_s=0.0, longest_step_s=1.0) -> Beat:
    return Beat(step, phase, at_s, own_s, longest_step_s)


def find_hung_rank(beats: list[Beat], *, now_s: float, least_s: float) -> HungRank | None:
    """Of ranks that were started at 90 s."""
    return find(beats, now_s=now_s, least_s=least_s, began_s=90.0)


def test_the_rank_that_is_not_waiting_is_the_one_that_hangs() -> None:
    beats = [beat(), beat(phase="compute"), beat()]
    found = find_hung_rank(beats, now_s=111.0, least_s=5.0)
    assert found is not None and (found.rank, found.silent_s) == (1, 11.0)


def test_a_rank_that_holds_up_the_gathering_of_weights_hangs_before_those_that_wait_for_gradients() -> None:
    held_up = [beat(), beat(phase="synchronisation"), beat()]
    found = find_hung_rank(held_up, now_s=111.0, least_s=5.0)
    assert found is not None and found.rank == 1
    samples = [beat(phase="synchronisation"), beat(phase="synchronisation", at_s=99.0), beat(phase="data")]
    found = find_hung_rank(samples, now_s=111.0, least_s=5.0)
    assert found is not None and found.rank == 2


def test_the_rank_furthest_behind_hangs_where_all_wait() -> None:
    beats = [beat(step=11), beat(step=10), beat(step=11)]
    found = find_hung_rank(beats, now_s=150.0, least_s=5.0)
    assert found is not None and found.rank == 1


def test_nobody_hangs_while_somebody_moves_or_steps_are_long() -> None:
    assert find_hung_rank([beat(), beat(at_s=109.0)], now_s=111.0, least_s=5.0) is None
    assert find_hung_rank([beat(longest_step_s=10.0)], now_s=111.0, least_s=5.0) is None
    assert find_hung_rank([beat(phase="startup")], now_s=111.0, least_s=5.0) is None
    assert find_hung_rank([beat(), beat(at_s=0.0)], now_s=90 + SLOW_PHASE_LIMIT_S - 1, least_s=5.0) is None


def test_a_rank_that_was_never_heard_of_hangs_once_the_start_took_too_long() -> None:
    unheard = Beat(0, "startup", 0.0, 0.0, 0.0)
    found = find_hung_rank([beat(phase="startup"), unheard], now_s=90 + SLOW_PHASE_LIMIT_S, least_s=5.0)
    assert found == HungRank(1, None, SLOW_PHASE_LIMIT_S)
    assert silence_text(found, "sleeping") == "no sign of life for 900 s, process sleeping"
    assert find_hung_rank([beat(), unheard], now_s=91 + SLOW_PHASE_LIMIT_S, least_s=2 * SLOW_PHASE_LIMIT_S) is None
    found = find_hung_rank([beat(), unheard, unheard], now_s=90 + SLOW_PHASE_LIMIT_S, least_s=5.0)
    assert found is not None and "for 900 s, as of 1 more, process in an unknown state" in silence_text(found, "")


def test_of_ranks_at_the_same_place_the_one_heard_of_longest_ago_hangs() -> None:
    beats = [beat(phase="checkpoint", at_s=100.0), beat(phase="checkpoint", at_s=99.0)]
    found = find_hung_rank(beats, now_s=100 + SLOW_PHASE_LIMIT_S, least_s=5.0)
    assert found is not None and found.rank == 1


@pytest.mark.parametrize("phase", ["checkpoint", "meeting"])
def test_what_waits_for_a_store_may_be_silent_for_longer_than_steps(phase: str) -> None:
    beats = [beat(phase=phase, at_s=100.0)]
    assert find_hung_rank(beats, now_s=99 + SLOW_PHASE_LIMIT_S, least_s=5.0) is None
    assert find_hung_rank(beats, now_s=100 + SLOW_PHASE_LIMIT_S, least_s=5.0) is not None


def watched(own_per_step: list[float], windows: int, loads: tuple[int, ...] = ()) -> list:
    watch = StragglerWatch(loads or (1,) * len(own_per_step))
    found = []
    for window in range(windows + 1):
        step = window * WINDOW_STEPS
        beats = [beat(step=step, own_s=step * own_s) for own_s in own_per_step]
        found.append(watch.look(beats))
    return [slow for slow in found if slow is not None]


def test_a_slow_rank_is_named_once_after_several_windows() -> None:
    assert watched([1.0, 1.5, 1.0, 1.1], SLOW_WINDOWS - 1) == []
    (slow,) = watched([1.0, 1.5, 1.0, 1.1], SLOW_WINDOWS + 3)
    assert (slow.rank, slow.step) == (1, SLOW_WINDOWS * WINDOW_STEPS)


def test_who_has_more_lanes_is_not_slow_and_who_is_slow_by_the_lane_has_to_hold_up_the_others() -> None:
    assert watched([2.0, 1.0, 1.0, 1.0], 5, loads=(2, 1, 1, 1)) == []
    assert watched([1.0, 1.0, 1.0, 1.0], 5, loads=(4, 4, 4, 2)) == []
    (slow,) = watched([3.0, 1.0, 1.0, 1.0], 5, loads=(2, 1, 1, 1))
    assert slow.rank == 0


def test_equal_ranks_and_a_rank_alone_are_not_slow() -> None:
    assert watched([1.0, 1.2], 5) == []
    assert watched([9.0], 5) == []


def test_a_page_holds_what_each_rank_wrote_last(tmp_path) -> None:
    page = Heartbeats.create(tmp_path / "page", 2)
    rank = Heartbeats(tmp_path / "page", 2)
    rank.beat(1, beat(step=7, phase="data"))
    assert page.read()[1] == beat(step=7, phase="data")
    assert page.read()[0].at_s == 0.0
    page.close()
    rank.close()


STANDS = """
import faulthandler, signal, sys, threading, time

def churn():
    while True:
        for _ in (tuple(number for number in range(3)) for _ in range(100)):
            pass

for _ in range(2):
    threading.Thread(target=churn, daemon=True).start()
file = open(sys.argv[1], "w")
faulthandler.register(signal.Signals[sys.argv[2]], file, all_threads=False)
faulthandler.register(int(sys.argv[3]), file, all_threads=True)
print("stands", flush=True)
time.sleep(60)
"""
"""A process of which two threads enter and leave frames all the time, which ends some dumps of all stacks."""


def test_the_main_threads_stack_is_whole_whatever_the_others_do(tmp_path) -> None:
    path = tmp_path / "stacks.txt"
    numbers = (MAIN_STACK_SIGNAL.name, str(int(ALL_STACKS_SIGNAL)))
    process = subprocess.Popen([sys.executable, "-c", STANDS, str(path), *numbers], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process:
        assert process.stdout.readline() == "stands\n"
        process.send_signal(signal.SIGSTOP)
        wait_until(lambda: process_state(process.pid) == STOPPED)
        assert not has_main_stack(path)
        request_main_stack(process.pid)  # of a process that is stopped, and none of its threads is asked before
        wait_until(lambda: has_main_stack(path))
        assert not are_stacks_whole(path)
        main_stack = path.read_text()
        [title, *frames] = main_stack.splitlines()
        assert title.startswith("Stack (most recent") and "in churn" not in main_stack
        assert frames[-1].endswith("in <module>")
        request_all_stacks(process.pid)
        wait_until(lambda: are_stacks_whole(path) or process.poll() is not None)
        assert path.read_text().startswith(main_stack)
        process.kill()
    assert not request_flight_dump(process.pid)
    request_main_stack(process.pid)  # it is gone: nobody is asked, and nothing raised
    request_all_stacks(process.pid)


def wait_until(holds: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def test_stacks_are_whole_once_the_main_thread_stands_there_to_the_end(tmp_path) -> None:
    path, ready = tmp_path / "stacks.txt", "import faulthandler, sys, threading, time\n"
    path.write_text("")
    code = f"{ready}threading.Thread(target=time.sleep, args=(9,), daemon=True).start()\ntime.sleep(0.2)\n"
    code += f"faulthandler.dump_traceback(open({str(path)!r}, 'w'), all_threads=True)"
    assert not are_stacks_whole(path)
    subprocess.run([sys.executable, "-c", code], check=True)
    assert are_stacks_whole(path)
    lines = path.read_text().splitlines(keepends=True)
    for num_lines in range(len(lines)):
        path.write_text("".join(lines[:num_lines]))
        assert not are_stacks_whole(path), lines[:num_lines]
    path.write_text("".join(["Stack (most recent call first):\n", *lines[-1:]]))
    assert has_main_stack(path) and not are_stacks_whole(path)
    path.unlink()
    assert has_main_stack(path) and are_stacks_whole(path)  # a rank that was too young to write any
