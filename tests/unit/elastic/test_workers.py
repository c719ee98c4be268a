"""Ranges of workers: what they mean, and which are refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.base.errors import ConfigError
from assay.elastic.workers import Workers, check_lanes, room_here


@given(st.integers(1, 10_000), st.integers(1, 10_000))
def test_what_is_written_is_read_again(least: int, more: int) -> None:
    for workers in (Workers(least), Workers(least + more, least)):
        assert Workers.of(str(workers)) == workers


@pytest.mark.parametrize("text", ["", "8..", "..8", "8-64", "8...64", "-1", "eight", "8..64..2", "8.5"])
def test_what_is_no_number_and_no_range_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match=r"expected a number, e\.g\. 8, or a range .*8\.\.64"):
        Workers.of(text)


@pytest.mark.parametrize(("text", "hint"), [("8..8", "8..8"), ("64..8", "8..64"), ("0..4", "1..4"), ("0..0", "1..2")])
def test_a_range_goes_upwards_from_one_at_least(text: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=r"the minimum of a range must be"):
        Workers.of(text)


def test_more_workers_than_lanes_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"--workers 9: loader.lanes=8 can be shared by 1 to 8 workers"):
        check_lanes(Workers(9, 2), 8)


def test_a_range_of_which_none_gains_anything_is_refused_with_the_number_that_would() -> None:
    with pytest.raises(ConfigError, match=r"--workers 4\.\.7: .* of 7 workers has 2 lanes, as of 4: .*up to 8"):
        check_lanes(Workers(7, 4), 8)
    output = check_lanes(Workers(7, 3), 8)
    assert output is not None and output.endswith("more than 4 bring no speedup; 8 would")
    assert check_lanes(Workers(7), 8) == output.replace("3..7", "7")
    assert check_lanes(Workers(8, 4), 8) is None and check_lanes(Workers(4), 8) is None


@given(st.integers(1, 64), st.integers(1, 64), st.integers(1, 64))
def test_what_is_said_to_gain_nothing_has_its_busiest_worker_as_busy(lanes: int, least: int, most: int) -> None:
    least, most = sorted((min(least, lanes), min(most, lanes)))
    if least == most:
        return
    busiest = {size: -(-lanes // size) for size in range(1, lanes + 1)}
    try:
        output = check_lanes(Workers(most, least), lanes)
    except ConfigError:
        assert busiest[least] == busiest[most]
    else:
        assert busiest[least] > busiest[most]
        assert (output is None) == (most == 1 or busiest[most - 1] > busiest[most])


@given(st.integers(1, 64), st.integers(1, 64), st.integers(1, 8), st.integers(0, 16), st.integers(1, 64))
def test_a_machine_takes_as_many_as_it_has_room_for(
    least: int, more: int, threads: int, num_gpus: int, num_processors: int
) -> None:
    workers = Workers(least + more, least)
    room = num_gpus or max(1, num_processors // threads)
    machine = {"threads": threads, "num_gpus": num_gpus, "num_processors": num_processors}
    if room < least:
        with pytest.raises(ConfigError, match=f"has room for {room}, with .*Use --workers {room}"):
            room_here(workers, num_lanes=128, **machine)
        return
    found = room_here(workers, num_lanes=128, **machine)
    assert least <= found <= min(room, workers.most)
    assert found == least or -(-128 // found) == -(-128 // min(room, workers.most)), "as fast as with all"


def test_one_number_is_taken_as_it_is_if_each_has_a_gpu_of_its_own() -> None:
    machine = {"num_lanes": 16, "threads": 1, "num_processors": 2}
    assert room_here(Workers(9), num_gpus=0, **machine) == room_here(Workers(9), num_gpus=9, **machine) == 9
    with pytest.raises(ConfigError, match=r"--workers 9: .* room for 8, with 8 GPUs. Use .* CUDA_VISIBLE_DEV"):
        room_here(Workers(9), num_gpus=8, **machine)
