"""Who is in which group is said with what torch's recorder keeps; and whose it is."""

import json
from pathlib import Path
from typing import Any

import torch.distributed as dist

from assay.distributed.flight_dump import flight_dump
from assay.distributed.ranks import Ranks
from forked_ranks import on_ranks


def dumped(ranks: Ranks) -> tuple[dict[str, Any], list[str]]:
    dist.new_group([1])  # of which rank 0 has a stand-in
    return json.loads(flight_dump(ranks.rank)), [ranks.control.group_name, ranks.saving.group_name]


def test_a_dump_names_the_rank_and_the_ranks_of_each_group_that_it_is_in(tmp_path: Path) -> None:
    for rank, (dump, names) in enumerate(on_ranks(2, dumped, tmp_path)):
        assert dump["rank"] == rank
        for name in names:
            assert dump["pg_config"][name] == {"name": name, "desc": "", "ranks": [0, 1]}
        of_one = [item for item in dump["pg_config"].values() if item["ranks"] == [1]]
        assert len(of_one) == (rank == 1)
