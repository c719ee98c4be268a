"""`assay triage hang` of real dumps: four ranks that hang in gloo, each for a reason of its own."""

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from assay.cli.main import main
from assay.distributed.flight_dump import flight_dump
from assay.distributed.ranks import Ranks
from forked_ranks import on_ranks

RANKS, ROUNDS = 4, 3
HANGS_S = 2.0
"""After which a collective counts as hung: these end in milliseconds."""


class HungError(Exception):
    """What each rank ends with, so that it takes no leave of peers that hang."""


def reduce_all(group: dist.ProcessGroup | None = None) -> None:
    dist.all_reduce(torch.ones(4), group=group)


def never_enters(ranks: Ranks) -> None:
    if ranks.rank != 1:
        reduce_all()


def enters_another(ranks: Ranks) -> None:
    if ranks.rank == 2:
        dist.broadcast(torch.ones(4), src=2)
    else:
        reduce_all()


def falls_behind(ranks: Ranks) -> None:
    for _ in range(ROUNDS if ranks.rank == 3 else ROUNDS + 1):
        reduce_all()


def waits_for_who_waits(ranks: Ranks) -> None:
    """Rank 0 waits in its pair for rank 1, and so do 2 and 3 in the group of all, for both."""
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    reduce_all(pairs[ranks.rank // 2])
    if ranks.rank == 0:
        reduce_all(pairs[0])
    if ranks.rank != 1:
        reduce_all()


def all_the_same(ranks: Ranks) -> None:
    """Nobody hangs."""
    reduce_all()


def dumps_of(hangs: Callable[[Ranks], None], folder: Path) -> Path:
    """What the recorders of ranks keep that made some rounds, and then hang."""
    (dumps := folder / "dumps").mkdir()

    def program(ranks: Ranks) -> None:
        for _ in range(ROUNDS):
            reduce_all()
        threading.Thread(target=hangs, args=(ranks,), daemon=True).start()
        time.sleep(HANGS_S)
        (dumps / f"rank-{ranks.rank}.json").write_bytes(flight_dump(ranks.rank))
        while len(list(dumps.iterdir())) < RANKS:
            time.sleep(0.02)
        # The last one may still be writing, and who leaves ends what the others wait in.
        time.sleep(HANGS_S / 2)
        raise HungError

    with pytest.raises(HungError):
        on_ranks(RANKS, program, folder / "ranks")
    return dumps


@pytest.mark.slow
@pytest.mark.parametrize(
    ("hangs", "blamed"),
    [
        (never_enters, [1]),
        (enters_another, [2]),
        (falls_behind, [3]),
        (waits_for_who_waits, [1]),
        (all_the_same, []),
    ],
)
def test_the_rank_that_holds_up_the_others_is_named(hangs, blamed, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "200")
    dumps = dumps_of(hangs, tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["triage", "hang", str(dumps), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert (ended.value.code, found["ranks"]) == (0, blamed), found
    waiting = {rank for group in found["groups"] for rank in group["waiting"]}
    # On a busy machine not all have come yet.
    assert waiting <= set(range(RANKS)) - set(blamed) and bool(waiting) == bool(blamed), found
