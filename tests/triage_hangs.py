"""Dumps of torch's flight recorder of made-up hangs, whose guilty rank is known.

A small simulation: ranks of a mesh (tensor x data x pipeline) issue operations of their groups, some ahead of the
device; an operation ends once all members have begun it. One rank goes wrong at a random operation. What is recorded
is written as several versions of torch write it.
"""

import json
import pickle
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

FAULTS = (
    "never enters", "device dies", "kernel never begins", "another collective", "another size", "another dtype",
    "no dump", "misses a transfer", "network",
)  # fmt: skip
OTHER_NAME = {"all_reduce": "broadcast", "_all_gather_base": "all_reduce", "_reduce_scatter_base": "all_reduce"}


class Op(NamedTuple):
    """An operation that a rank issues; `group` are its ranks."""

    group: tuple[int, ...]
    name: str
    size: int
    dtype: str = "Float"
    peer: int | None = None


class _Rank:
    """How far a rank is: operations issued, begun and ended."""

    def __init__(self, program: list[Op], syncs: list[int]) -> None:
        self.program, self.syncs = program, syncs
        self.issued = self.num_started = self.ended = 0
        self.most_issued = self.most_started = len(program)


class Hang(NamedTuple):
    """A folder of dumps, and the rank at fault; none if the network is."""

    fault: str
    guilty: frozenset[int]


def write_hang(folder: Path, seed: int) -> Hang:
    """Write the dumps of one hang."""
    rng = np.random.default_rng(seed)
    fault = FAULTS[seed % len(FAULTS)]
    tensor, data, pipe = int(rng.choice([1, 2, 4])), int(rng.choice([2, 4, 8])), int(rng.choice([1, 2, 4]))
    if fault == "misses a transfer":
        pipe = max(pipe, 2)
    if tensor * data * pipe < 4:
        data = 4
    world = tensor * data * pipe
    rounds = int(rng.integers(4, 9))
    ranks = [_Rank(*_program(rank, tensor, data, pipe, rounds)) for rank in range(world)]
    guilty = int(rng.integers(world))
    if fault == "network":
        op, number = _occurrences(ranks[guilty].program)[int(rng.integers(5, len(ranks[guilty].program)))]
        _run(ranks, (op, number), rng)
    else:
        _break(ranks[guilty], fault, rng)
        _run(ranks, None, rng)
    style = str(rng.choice(["2.1", "2.4", "2.10"])), bool(rng.random() < 0.6), int(rng.choice([30, 60, 2_000]))
    for number, rank in enumerate(ranks):
        if fault != "no dump" or number != guilty:
            _write(folder, number, rank, ranks, style)
    return Hang(fault, frozenset() if fault == "network" else frozenset({guilty}))


def _program(rank: int, tensor: int, data: int, pipe: int, rounds: int) -> tuple[list[Op], list[int]]:
    """Return a rank's operations, and before which of them it waits for all earlier ones."""
    ranks = np.arange(tensor * data * pipe).reshape(pipe, data, tensor)
    stage, replica, part = (int(index) for index in np.argwhere(ranks == rank)[0])
    tensor_group, data_group = tuple(map(int, ranks[stage, replica])), tuple(map(int, ranks[stage, :, part]))
    everybody = tuple(map(int, ranks.ravel()))
    program, syncs = list[Op](), list[int]()
    for number in range(rounds):
        if stage > 0:
            before = int(ranks[stage - 1, replica, part])
            program.append(Op(everybody, "recv", 64, peer=before))
        for layer in range(3):
            if tensor > 1:
                program.append(Op(tensor_group, "all_reduce", 128 + layer))
        if stage < pipe - 1:
            program.append(Op(everybody, "send", 64, peer=int(ranks[stage + 1, replica, part])))
        program.append(Op(data_group, "_reduce_scatter_base", 256))
        program.append(Op(data_group, "_all_gather_base", 32))
        if number % 2:
            syncs.append(len(program))
            program.append(Op(everybody, "all_reduce", 1))
            syncs.append(len(program))
    return program, syncs


def _break(rank: _Rank, fault: str, rng: np.random.Generator) -> None:
    """Change what the guilty rank does from some operation on."""
    if fault == "misses a transfer":
        kinds = [k for k, op in enumerate(rank.program) if op.peer is not None and k > 4]
    elif fault.startswith("another"):
        kinds = [k for k, op in enumerate(rank.program) if op.peer is None and len(op.group) > 2 and k > 4]
    else:
        kinds = [k for k, op in enumerate(rank.program) if op.peer is None and len(op.group) > 1 and k > 4]
    at = int(rng.choice(kinds))
    op = rank.program[at]
    if fault in ("never enters", "no dump", "misses a transfer"):
        rank.most_issued = at
    elif fault == "device dies":
        rank.most_issued, rank.most_started = at + 1, at + int(rng.integers(2))
    elif fault == "kernel never begins":
        rank.most_started = at
    elif fault == "another collective":
        rank.program[at] = op._replace(name=OTHER_NAME[op.name])
    elif fault == "another size":
        rank.program[at] = op._replace(size=op.size + 8)
    elif fault == "another dtype":
        rank.program[at] = op._replace(dtype="BFloat16")


def _run(ranks: list[_Rank], stuck: tuple[Any, int] | None, rng: np.random.Generator) -> None:
    """Let all go as far as they can; `stuck`: the operation in which the network fails."""
    occurrence = [_occurrences(rank.program) for rank in ranks]
    ahead = rng.integers(2, 12, size=len(ranks))
    is_moving = True
    while is_moving:
        is_moving = False
        for number, rank in enumerate(ranks):
            limit = min([rank.most_issued, rank.ended + int(ahead[number]), *(s for s in rank.syncs if s > rank.ended)])
            if rank.issued < limit:
                rank.issued, is_moving = rank.issued + 1, True
            if rank.num_started == rank.ended and rank.num_started < min(rank.issued, rank.most_started):
                rank.num_started, is_moving = rank.num_started + 1, True
        for number, rank in enumerate(ranks):
            if rank.num_started > rank.ended and _ends(ranks, occurrence, number, stuck):
                rank.ended, is_moving = rank.ended + 1, True


def _occurrences(program: list[Op]) -> list[tuple[Any, int]]:
    """Return for each operation its channel, and its number there."""
    counts: dict[Any, int] = {}
    found = []
    for op in program:
        channel = (op.group, op.peer, op.name) if op.peer is not None else op.group
        found.append((channel, counts.get(channel, 0)))
        counts[channel] = counts.get(channel, 0) + 1
    return found


def _ends(
    ranks: list[_Rank], occurrence: list[list[tuple[Any, int]]], number: int, stuck: tuple[Any, int] | None
) -> bool:
    """Return whether all members have begun the operation that this rank is in, with equal arguments."""
    index = ranks[number].ended
    op, (channel, count) = ranks[number].program[index], occurrence[number][index]
    if (channel, count) == stuck:
        return False
    if op.peer is not None:
        other = (op.group, number, "recv" if op.name == "send" else "send")
        return occurrence[op.peer].index((other, count)) < ranks[op.peer].num_started
    for member in op.group:
        position = occurrence[member].index((channel, count))
        if position >= ranks[member].num_started or ranks[member].program[position][1:] != op[1:]:
            return False
    return True


def _write(folder: Path, number: int, rank: _Rank, ranks: list[_Rank], style: tuple[str, bool, int]) -> None:
    version, has_times, num_recorded = style
    names = {group: str(k) for k, group in enumerate(sorted({op.group for r in ranks for op in r.program}, key=len))}
    everybody = tuple(range(len(ranks)))
    called = {group: ("0" if group == everybody else f"{k}1", "default_pg" if group == everybody else "undefined")
              for group, k in names.items()}  # fmt: skip
    counts: dict[Any, int] = {}
    transfers = 0
    entries = list[dict[str, Any]]()
    for index, op in enumerate(rank.program[: rank.issued]):
        if op.peer is None:
            counts[op.group] = counts.get(op.group, 0) + 1
        transfers += op.peer is not None
        state = (
            "completed" if index < rank.ended else "started" if index < rank.num_started and has_times else "scheduled"
        )
        arrow = {"send": f" {number}->{op.peer}", "recv": f" {number}<-{op.peer}"}.get(op.name, "")
        entries.append({
            "record_id": index, "pg_id": int(called[op.group][0]), "process_group": list(called[op.group]),
            ("seq_id" if version == "2.1" else "collective_seq_id"): counts.get(op.group, 0), "p2p_seq_id": transfers,
            "profiling_name": f"nccl:{op.name}{arrow}", "input_sizes": [[op.size]], "output_sizes": [[op.size]],
            "input_dtypes": [op.dtype], "output_dtypes": [op.dtype], "state": state, "is_p2p": op.peer is not None,
            "retired": index < rank.ended, "op_id": index, "timeout_ms": 600_000,
        })  # fmt: skip
    config = {
        called[group][0]: {"name": called[group][0], "desc": called[group][1], "ranks": str(list(group))}
        for group in called if number in group
    }  # fmt: skip
    recent = entries[-num_recorded:]
    if version == "2.10":
        text = json.dumps({"version": version, "pg_config": config, "entries": recent})
        (folder / f"nccl_trace_rank_{number}.json").write_text(text)
    else:
        recent = [{**entry, "process_group": tuple(entry["process_group"])} for entry in recent]
        dump = {"version": version, "pg_config": config, "entries": recent}
        (folder / f"nccl_trace_rank_{number}").write_bytes(pickle.dumps(dump))
