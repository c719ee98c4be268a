"""Who holds up whom, from dumps as torch's flight recorder writes them."""

import json
import pickle

import pytest

from assay.base.errors import DataError
from assay.triage.flight_recorder import find_hung_ranks, read_dumps


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


def test_a_pickle_that_names_a_class_is_refused(tmp_path):
    (tmp_path / "rank_0").write_bytes(pickle.dumps(DataError))
    with pytest.raises(DataError, match="Nothing of it ran"):
        read_dumps(tmp_path)
