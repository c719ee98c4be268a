"""What is timed of the links: turns of two sizes, each both ways and then added."""

from pathlib import Path
from unittest.mock import patch

import pytest
import torch

from assay.distributed import link_probe
from assay.distributed.link_probe import (
    LARGE_BYTES,
    ROUNDS,
    SMALL_BYTES,
    WARMUP_ROUNDS,
    probe_links,
)
from assay.distributed.ranks import Ranks
from assay.distributed.swap import swap
from forked_ranks import on_ranks


def probed(ranks: Ranks) -> list[tuple[str, float, float]]:
    assert ranks.outer is not None
    return list(probe_links(ranks.outer, torch.device("cpu")))


def sizes_swapped(ranks: Ranks) -> list[int]:
    with patch.object(link_probe, "swap", wraps=swap) as swapped:
        probed(ranks)
    return [transfer.tensor.nbytes for call in swapped.call_args_list for arg in call.args[:2] for transfer in arg]


def test_as_many_bytes_go_each_way_as_the_span_says(tmp_path: Path) -> None:
    turns = 2 * (WARMUP_ROUNDS + ROUNDS)
    for sizes in on_ranks(2, sizes_swapped, tmp_path):
        assert sizes == [SMALL_BYTES] * turns + [LARGE_BYTES] * turns


@pytest.mark.parametrize("world_size", [2, 3])
def test_each_rank_of_the_ring_times_every_turn_that_counts(world_size: int, tmp_path: Path) -> None:
    names = [f"{what} {size}" for size in (SMALL_BYTES, LARGE_BYTES) for what in ("swapped", "added")]
    for spans in on_ranks(world_size, probed, tmp_path):
        assert [name for name, *_ in spans[:2]] == names[:2]
        assert {name: sum(span[0] == name for span in spans) for name in names} == dict.fromkeys(names, ROUNDS)
        assert len(spans) == ROUNDS * len(names)
        moments = [moment for span in spans for moment in span[1:]]
        assert moments == sorted(moments)
