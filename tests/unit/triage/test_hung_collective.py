"""Who holds up whom, from dumps as torch's flight recorder writes them."""

import json
import pickle

import pytest

from assay.base.errors import DataError
from assay.triage.flight_recorder import find_hung_ranks, read_dumps
from triage_hangs import write_hang
from variants import soaked


def entry(number, name="gloo:all_reduce", *, retired=True):
    return {
        "process_group": ["0", "default_pg"],
        "collective_seq_id": number,
        "profiling_name": name,
        "input_sizes": [[4]],
        "state": "scheduled",
        "retired": retired,
        "is_p2p": False,
    }


def hung(folder, *ranks):
    for rank, entries in enumerate(ranks):
        (folder / f"rank_{rank}.json").write_text(json.dumps({"version": "2.10", "entries": entries}))
    return find_hung_ranks(*read_dumps(folder))


def test_the_rank_that_never_entered_is_named(tmp_path):
    waits = [entry(1), entry(2, retired=False)]
    assert hung(tmp_path, waits, [entry(1)], waits).ranks == (1,)


def test_the_rank_that_entered_another_is_named(tmp_path):
    waits = [entry(2, retired=False)]
    assert hung(tmp_path, waits, waits, [entry(2, "gloo:broadcast", retired=False)]).ranks == (2,)


def test_where_all_entered_the_same_none_is_named(tmp_path):
    assert hung(tmp_path, *([[entry(1, retired=False)]] * 3)).ranks == ()


def test_a_rank_without_a_dump_is_named_where_all_others_have_come_to_a_group_of_unknown_members(
    tmp_path,
):
    waits = {**entry(2, retired=False), "process_group": ["2", "undefined"]}
    world = {"": {"name": "", "desc": "", "ranks": "[0, 1, 2]"}}

    def found(*ranks):
        for rank, entries in ranks:
            dump = {"version": "2.10", "entries": entries, "pg_config": world}
            (tmp_path / f"rank_{rank}.json").write_text(json.dumps(dump))
        return find_hung_ranks(*read_dumps(tmp_path))

    hung = found((0, [waits]), (2, [waits]))
    assert (hung.ranks, hung.groups[0].without_dump) == ((1,), (1,))
    late = found((0, [waits]), (2, [{**waits, "collective_seq_id": 1, "retired": True}]))
    assert (late.ranks, late.groups[0].without_dump) == ((2,), ())


def dumped(folder, *ranks, world=None):
    """Dumps of NCCL's recorder; each entry is (number, name, state)."""
    (folder / "d").mkdir()
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(world or len(ranks))))}}
    for rank, entries in enumerate(ranks):
        written = [
            {
                **entry(number, name, retired=state == "completed"),
                "state": state,
                "is_p2p": any(word in name for word in ("send", "recv", "coalesced")),
                "p2p_seq_id": number,
            }
            for number, name, state in entries
        ]
        dump = {"version": "2.9", "pg_config": config, "entries": written}
        (folder / "d" / f"nccl_trace_rank_{rank}").write_text(json.dumps(dump))
    return find_hung_ranks(*read_dumps(folder / "d"))


REDUCED = [(number, "nccl:all_reduce", "completed") for number in (1, 2, 3)]


def waits_in(number, state="started", name="nccl:all_reduce"):
    return (number, name, state)


def test_the_rank_that_answers_no_send_is_named(tmp_path):
    found = dumped(tmp_path, [*REDUCED, waits_in(4, name="nccl:send 0->1")], REDUCED)
    assert (found.ranks, found.because.code, found.groups[0].waiting) == ((1,), "never entered", (0,))


def test_a_send_and_its_receive_that_both_wait_name_nobody(tmp_path):
    ranks = [waits_in(4, name="nccl:send 0->1")], [waits_in(4, name="nccl:recv 1<-0")]
    found = dumped(tmp_path, *ranks)
    assert (found.ranks, found.because.code) == ((), "none waits")


def test_transfers_of_a_batch_have_ended_where_the_batch_has(tmp_path):
    batch = [(1, "nccl:send 0->1", "scheduled"), (1, "nccl:coalesced", "completed")]
    assert dumped(tmp_path, batch, []).because.code == "none waits"


def test_the_rank_whose_device_has_not_begun_is_named(tmp_path):
    ranks = [[*REDUCED, waits_in(4, "scheduled" if rank == 1 else "started")] for rank in range(4)]
    found = dumped(tmp_path, *ranks)
    assert (found.ranks, found.because.code, found.groups[0].not_started) == ((1,), "not started", (1,))


def test_the_rank_that_issued_nothing_more_is_named_though_it_is_in_the_same_collective(tmp_path):
    more = [waits_in(4), waits_in(5, "scheduled"), waits_in(6, "scheduled")]
    found = dumped(tmp_path, [*REDUCED, *more], [*REDUCED, *more], [*REDUCED, more[0]])
    assert (found.ranks, found.because.code, found.groups[0].stopped) == ((2,), "issued no more", (2,))


def test_the_rank_that_did_not_end_what_the_others_ended_is_named(tmp_path):
    others = [*REDUCED, waits_in(4)]
    assert dumped(tmp_path, others, others, [*REDUCED[:2], waits_in(3)]).ranks == (2,)


def test_who_waits_elsewhere_is_not_to_blame(tmp_path):
    """Rank 0 is absent in the group of all because it waits in a pair for rank 1."""
    pair = {**entry(1, "nccl:all_gather", retired=False), "process_group": ["7", "pair"]}
    everybody = entry(2, "nccl:all_reduce", retired=False)
    assert hung(tmp_path, [entry(1), pair], [{**pair, "collective_seq_id": 0, "retired": True}, entry(1)],
                [entry(1), everybody]).ranks == (1,)  # fmt: skip


@pytest.mark.parametrize(
    "change", [{"input_dtypes": ["Half"]}, {"input_sizes": [[5]]}, {"profiling_name": "gloo:broadcast"}]
)
def test_another_type_size_or_collective_is_named(tmp_path, change):
    waits = {**entry(2, retired=False), "input_dtypes": ["Float"]}
    found = hung(tmp_path, [waits], [waits | change], [waits])
    assert found.ranks == (1,) and list(found.groups[0].others.values()) == [(1,)]


def test_dumps_of_the_first_versions_are_read(tmp_path):
    old = {"seq_id": 3, "pg_id": 0, "profiling_name": "nccl:all_reduce", "input_sizes": [[4]], "state": "scheduled"}
    (tmp_path / "rank_0").write_bytes(pickle.dumps([{**old, "frames": [{"name": "f", "line": 3}]}]))
    (tmp_path / "rank_1").write_bytes(pickle.dumps({"entries": [{**old, "seq_id": 2, "retired": True}]}))
    assert find_hung_ranks(*read_dumps(tmp_path)).ranks == (1,)


def test_groups_that_are_numbers_with_their_ranks_are_read(tmp_path):
    """As torch 2.3 writes them: neither names nor types, and a transfer is known by its name alone."""
    called = ["all_reduce", "send 0->1", "all_reduce"]
    for rank, done in ((0, 1), (1, 2), (2, 2)):
        entries = [
            {"seq_id": 3 + number, "pg_id": 0, "profiling_name": f"nccl:{name}", "input_sizes": [[4]],
             "state": "completed" if number == 0 else "scheduled"}
            for number, name in enumerate(called[:done] if rank == 0 else [called[0], called[2]])
        ]  # fmt: skip
        dump = {"version": "1.4", "pg_config": {0: [0, 1, 2, 3]}, "entries": entries}
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(dump))
    found = find_hung_ranks(*read_dumps(tmp_path))
    assert found.ranks == (0, 3) and found.groups[0].without_dump == (3,)


@pytest.mark.parametrize("first", [0, *soaked(200)])
def test_the_guilty_rank_of_made_up_hangs_is_found_and_no_other(tmp_path, first):
    found, wrong = [], 0
    for seed in range(first, first + (18 if first == 0 else 200)):
        (folder := tmp_path / str(seed)).mkdir()
        hang = write_hang(folder, seed)
        named = set(find_hung_ranks(*read_dumps(folder)).ranks)
        wrong += bool(named - hang.guilty)
        found += [hang.guilty <= named] if hang.guilty else []
    print(f"guilty ranks found: {sum(found)} of {len(found)}; wrongly named in {wrong} hangs")
    assert wrong == 0 and sum(found) >= 7 / 8 * len(found)


def test_a_pickle_that_names_a_class_is_refused(tmp_path):
    (tmp_path / "rank_0").write_bytes(pickle.dumps(DataError))
    with pytest.raises(DataError, match="Nothing of it ran"):
        read_dumps(tmp_path)
