"""Several ranks of the real thing for a test: forks of this process that meet over gloo.

A fork has what the test has, so a program for the ranks is any function; what it returns comes back by rank.
"""

import faulthandler
import gc
import os
import pickle
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import torch._dynamo  # noqa: F401  # DDP and FSDP2 import it: once here, and not in each fork

from assay.distributed.ranks import Ranks

RETRY_BUDGET_S = 60
Result = TypeVar("Result")


def on_ranks(world_size: int, program: Callable[[Ranks], Result], folder: Path, **joining: Any) -> list[Result]:
    """What `program` returns on each of the ranks; raises what it raises on the first that fails."""
    folder.mkdir(parents=True, exist_ok=True)
    children = []
    for rank in range(world_size):
        child = os.fork()
        if not child:
            _be_rank(rank, world_size, program, folder, joining)
        children.append(child)
    ends = [os.waitpid(child, 0)[1] for child in children]
    results: list[Any] = []
    for rank, end in enumerate(ends):
        stacks = folder / f"stacks-{rank}"
        assert end == 0, f"rank {rank} ended with wait status {end}\n{stacks.read_text() if stacks.exists() else ''}"
        results.append(pickle.loads((folder / f"result-{rank}").read_bytes()))
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


def _be_rank(
    rank: int, world_size: int, program: Callable[[Ranks], Any], folder: Path, joining: dict[str, Any]
) -> NoReturn:
    gc.freeze()  # what other tests left behind may join a thread as it is freed: a fork has none of their threads
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(RETRY_BUDGET_S)
    stacks = (folder / f"stacks-{rank}").open("w")
    faulthandler.dump_traceback_later(RETRY_BUDGET_S - 5, file=stacks)
    try:
        try:
            ranks = Ranks.join(
                rank=rank,
                world_size=world_size,
                rendezvous=f"file://{folder}/rendezvous",
                num_threads=1,
                timeout_s=RETRY_BUDGET_S,
                **joining,
            )
            result = program(ranks)
            ranks.leave()
        except BaseException as error:
            result = error
        (folder / f"result-{rank}").write_bytes(pickle.dumps(result))
    except BaseException:
        os._exit(1)
    os._exit(0)
