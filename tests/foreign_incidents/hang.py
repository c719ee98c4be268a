"""76 folders of flight-recorder dumps, from a simulation of ranks that issue collectives, sends and receives.

Each rank has a program: operations of process groups, in order. Its CPU issues them up to a number ahead of its GPU; an
operation completes once all its ranks have reached it with one signature. What a guilty rank does differently (it
stops, dies, takes another branch, has another size or type, its GPU hangs) blocks the others by itself, so who waits
for whom follows from the simulation and was not written down.

The dumps are written as PyTorch did: pickles of torch 2.3 (format 1.4, `seq_id`), 2.5 (2.4) and 2.7 (2.7), and JSON
(2.10). NCCL records that an operation has started only with timing enabled: without it all are `scheduled`.
"""

import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from foreign_incidents.commands import is_in_held_out_half, triage

SEED = 606_129
COUNTS = {
    "stopped": 8,
    "dead": 7,
    "node_dead": 4,
    "size": 6,
    "dtype": 4,
    "branch": 6,
    "skipped": 4,
    "device": 5,
    "pipeline": 8,
    "tensor_parallel": 5,
    "partial": 3,
    "ring": 8,
    "nobody": 8,
}
"""Kind of fault -> how many. In `partial`, dumps of innocent ranks were lost; in `nobody` all are in a collective that
never ends, so no rank is guilty."""
VERSIONS = ("1.4", "2.4", "2.7", "2.10")


class Operation(NamedTuple):
    group: str
    name: str
    size: int
    dtype: str
    ranks: tuple[int, ...]
    peer: tuple[int, int] | None = None
    """Sender and receiver."""
    turn: int = 0
    """From 1: the number of an exchange with both neighbours of a ring."""


class HangIncident(NamedTuple):
    name: str
    kind: str
    is_held_out: bool
    version: str
    files: dict[str, bytes]
    guilty: frozenset[int]
    unknown: frozenset[int]
    """Ranks without a dump that are innocent, which no reader of the dumps can know."""


class HangGrade(NamedTuple):
    is_right: bool
    wrongly_named: frozenset[int]
    found: tuple[int, ...]
    because: str


def incidents() -> Iterator[HangIncident]:
    rng = np.random.default_rng(SEED)
    for kind, count in COUNTS.items():
        for index in range(count):
            yield _incident(kind, index, rng)


def grade(incident: HangIncident, folder: Path) -> HangGrade:
    """Run `assay triage hang` and compare."""
    dumps = folder / incident.name
    dumps.mkdir()
    for name, content in incident.files.items():
        (dumps / name).write_bytes(content)
    try:
        found = triage("hang", str(dumps), folder=folder)
    except AssertionError as error:
        return HangGrade(False, frozenset(), (), str(error)[:300])
    named = frozenset(found["ranks"])
    return HangGrade(
        incident.guilty <= named,
        named - incident.guilty - incident.unknown,
        tuple(found["ranks"]),
        str(found["because"]),
    )


def summary(graded: list[tuple[HangIncident, HangGrade]]) -> dict[str, float]:
    """Return the share of guilty ranks that were named, and how many innocent ones."""
    shares: dict[str, float] = {}
    for label, part in (
        ("", [(i, g) for i, g in graded if i.version != "1.4"]),
        ("torch 2.3: ", [(i, g) for i, g in graded if i.version == "1.4"]),
    ):
        guilty = sum(len(incident.guilty) for incident, _ in part)
        hits = sum(len(incident.guilty & set(grade.found)) for incident, grade in part)
        right = sum(grade.is_right and not grade.wrongly_named for _, grade in part)
        shares |= {
            f"{label}ranks_named": hits / max(1, guilty),
            f"{label}incidents_right": right / max(1, len(part)),
            f"{label}wrongly_named": float(sum(len(grade.wrongly_named) for _, grade in part)),
        }
    for kind in COUNTS:
        those = [
            grade.is_right and not grade.wrongly_named
            for incident, grade in graded
            if incident.kind == kind and incident.version != "1.4"
        ]
        shares[kind] = sum(those) / max(1, len(those))
    return shares


def _incident(kind: str, index: int, rng: np.random.Generator) -> HangIncident:
    if kind == "pipeline":
        stages, replicas, tensor = int(rng.choice([2, 4])), int(rng.choice([1, 2])), 1
    elif kind == "tensor_parallel":
        stages, replicas, tensor = 1, int(rng.choice([2, 4])), int(rng.choice([2, 4]))
    else:
        stages, replicas, tensor = 1, int(rng.choice([2, 4, 8, 16])), 1
        if kind in ("size", "dtype", "branch", "device", "node_dead"):
            replicas = max(4, replicas)
    world = stages * replicas * tensor
    programs = _programs(stages, replicas, tensor, rng)
    if kind == "ring":
        replicas = world = max(4, replicas)
        programs = [_ring(rank, world) for rank in range(world)]
    guilty = set() if kind == "nobody" else {int(rng.integers(world))}
    if kind == "node_dead":
        start = int(rng.integers(world // 2)) // 2 * 2
        guilty = {start, start + 1}
    rank = min(guilty, default=0)
    stops, stuck = {}, {}
    length = len(programs[rank])
    at = int(rng.integers(length // 3, length - 2))
    while kind in ("size", "dtype", "branch") and len(programs[rank][at].ranks) < 2:
        at += 1
    if kind in ("stopped", "dead", "node_dead", "pipeline", "tensor_parallel", "partial", "ring"):
        for one in guilty:
            stops[one] = min(at, len(programs[one]) - 2)
    elif kind == "device":
        stuck[rank] = at
    elif kind == "nobody":
        stuck = dict.fromkeys(range(world), at)
    else:
        programs[rank] = _changed(programs[rank], at, kind)
    ahead = int(rng.choice([1, 3, 8, 40]))
    has_timing = kind == "device" or index % 2 == 0
    issued, done = _simulate(programs, stops, stuck, ahead)
    without_dump = (
        set(guilty)
        if kind in ("dead", "node_dead") or (kind in ("pipeline", "tensor_parallel") and index % 4 == 3)
        else set()
    )
    unknown: set[int] = set()
    if kind == "partial":
        unknown = {one for one in range(world) if one not in guilty and rng.random() < 0.3}
        if len(unknown) == world - 1:
            unknown.pop()
    version = VERSIONS[(index + len(kind)) % 4]
    ring = int(rng.choice([6, 20, 2000]))
    files = {}
    for one in set(range(world)) - without_dump - unknown:
        dump = _dump(
            one,
            programs,
            issued,
            done,
            version,
            ring,
            has_timing,
            world,
            at if one in guilty & set(stuck) else None,
            rng,
        )
        name = ("nccl_trace_rank_{}", "rank_{}", "comm_lib_trace_rank_{}", "trace_{}.json")[
            VERSIONS.index(version)
        ].format(one)
        files[name] = json.dumps(dump).encode() if version == "2.10" else pickle.dumps(dump, protocol=2)
    name = f"{kind}-{index:02d}"
    return HangIncident(name, kind, is_in_held_out_half(name), version, files, frozenset(guilty), frozenset(unknown))


def _programs(stages: int, replicas: int, tensor: int, rng: np.random.Generator) -> list[list[Operation]]:
    """Return what each rank issues: steps of tensor-parallel, pipeline and data-parallel operations."""
    world = stages * replicas * tensor
    steps = int(rng.integers(3, 9))
    buckets = [int(rng.integers(1_000, 50_000_000)) for _ in range(int(rng.integers(1, 5)))]
    is_sharded = bool(rng.integers(2))
    programs: list[list[Operation]] = [[] for _ in range(world)]
    everyone = tuple(range(world))
    for rank in range(world):
        stage, replica, part = rank // (replicas * tensor), rank // tensor % replicas, rank % tensor
        tp = tuple(stage * replicas * tensor + replica * tensor + i for i in range(tensor))
        dp = tuple(stage * replicas * tensor + i * tensor + part for i in range(replicas))
        line = [s * replicas * tensor + replica * tensor + part for s in range(stages)]
        tp_name, dp_name = f"tp{stage}_{replica}", ("0" if len(dp) == world else f"dp{stage}_{part}")
        program = programs[rank]
        for _ in range(steps):
            for piece in range(2 * (stages > 1)):
                if stage > 0:
                    program.append(
                        Operation(
                            f"pp{replica}_{part}",
                            "recv",
                            4096 + piece,
                            "BFloat16",
                            tuple(line),
                            (line[stage - 1], rank),
                        )
                    )
                if stage < stages - 1:
                    program.append(
                        Operation(
                            f"pp{replica}_{part}",
                            "send",
                            4096 + piece,
                            "BFloat16",
                            tuple(line),
                            (rank, line[stage + 1]),
                        )
                    )
            for piece in range(2 * (stages > 1)):
                if stage < stages - 1:
                    program.append(
                        Operation(
                            f"pp{replica}_{part}",
                            "recv",
                            2048 + piece,
                            "BFloat16",
                            tuple(line),
                            (line[stage + 1], rank),
                        )
                    )
                if stage > 0:
                    program.append(
                        Operation(
                            f"pp{replica}_{part}",
                            "send",
                            2048 + piece,
                            "BFloat16",
                            tuple(line),
                            (rank, line[stage - 1]),
                        )
                    )
            if tensor > 1:
                program.extend(Operation(tp_name, "all_reduce", 1 << 20, "BFloat16", tp) for _ in range(3))
            if replicas > 1:
                for bucket in buckets:
                    if is_sharded:
                        program.append(Operation(dp_name, "_all_gather_base", bucket, "BFloat16", dp))
                    program.append(
                        Operation(dp_name, "_reduce_scatter_base" if is_sharded else "all_reduce", bucket, "Float", dp)
                    )
            program.append(Operation("0", "all_reduce", 1, "Float", everyone))  # norm of the gradient
    return programs


def _ring(rank: int, world: int) -> list[Operation]:
    """Return the exchanges of ring attention, with a reduction after each round of them."""
    everyone = tuple(range(world))
    program: list[Operation] = []
    for turn in range(1, 41):
        program.append(Operation("cp", "coalesced", 4096, "BFloat16", everyone, (rank, (rank + 1) % world), turn))
        if turn % 10 == 0:
            program.append(Operation("0", "all_reduce", 1000, "Float", everyone))
    return program


def _changed(program: list[Operation], at: int, kind: str) -> list[Operation]:
    if kind == "skipped":
        return program[:at] + program[at + 1 :]
    operation = program[at]
    if kind == "size":
        other = operation._replace(size=operation.size + 17)
    elif kind == "dtype":
        other = operation._replace(dtype="Half" if operation.dtype != "Half" else "Float")
    else:  # a condition that only this rank met: a logging reduction, an evaluation
        other = operation._replace(name="broadcast" if operation.name != "broadcast" else "all_reduce", size=8)
        return [*program[:at], other, *program[at:]]
    return [*program[:at], other, *program[at + 1 :]]


def _simulate(
    programs: list[list[Operation]], stops: dict[int, int], stuck: dict[int, int], ahead: int
) -> tuple[list[int], list[int]]:
    """Return, per rank, how many operations were issued and how many completed once nothing moves."""
    world = len(programs)
    issued, done = [0] * world, [0] * world
    moved = True
    while moved:
        moved = False
        for rank in range(world):
            limit = min(len(programs[rank]), stops.get(rank, 1 << 30), done[rank] + ahead)
            if issued[rank] < limit:
                issued[rank], moved = limit, True
        for rank in range(world):
            if done[rank] < issued[rank] and _completes(rank, programs, issued, done, stuck):
                operation = programs[rank][done[rank]]
                for one in (rank,) if operation.turn else operation.peer or operation.ranks:
                    done[one] += 1
                moved = True
    return issued, done


def _completes(
    rank: int, programs: list[list[Operation]], issued: list[int], done: list[int], stuck: dict[int, int]
) -> bool:
    operation = programs[rank][done[rank]]
    if operation.turn:
        neighbours = [(rank - 1) % len(programs), (rank + 1) % len(programs)]
        at = done[rank]  # of all ranks: their programs are alike
        return all(issued[one] > at and done[one] >= at for one in neighbours)
    for one in operation.peer or operation.ranks:
        if done[one] >= issued[one] or done[one] >= stuck.get(one, 1 << 30):
            return False
        other = programs[one][done[one]]
        if other.peer != operation.peer or (other.group, other.size, other.dtype) != (
            operation.group,
            operation.size,
            operation.dtype,
        ):
            return False
        if operation.peer is None and other.name != operation.name:
            return False
    return True


def _dump(
    rank: int,
    programs: list[list[Operation]],
    issued: list[int],
    done: list[int],
    version: str,
    ring: int,
    has_timing: bool,
    world: int,
    hanging: int | None,
    rng: np.random.Generator,
) -> dict[str, Any]:
    is_json, is_old = version == "2.10", version == "1.4"
    names = sorted({operation.group for program in programs for operation in program} - {"0"})
    ids = {"0": 0} | {name: i + 1 for i, name in enumerate(names)}
    members = {operation.group: operation.ranks for operation in programs[rank]}
    entries: list[dict[str, Any]] = []
    sequences: dict[str, int] = {}
    peers: dict[str, int] = {}
    none: int | None = 0 if is_json else None
    begin = 1_790_000_000_000_000_000 + int(rng.integers(10**9))
    for i, operation in enumerate(programs[rank][: issued[rank]]):
        counter = peers if operation.peer else sequences
        counter[operation.group] = counter.get(operation.group, 0) + 1
        is_done = i < done[rank]
        # The GPU has begun the operation at its queue's head, unless it hangs in a kernel before it.
        is_running = is_done or (i == done[rank] and i != hanging)
        name = f"nccl:{operation.name}"
        if operation.peer and not operation.turn:
            order = [operation.ranks.index(one) for one in operation.peer]
            name += f" {order[0]}->{order[1]}" if operation.name == "send" else f" {order[1]}<-{order[0]}"
        factor = len(operation.ranks)
        sizes = {
            "_all_gather_base": (operation.size, operation.size * factor),
            "_reduce_scatter_base": (operation.size * factor, operation.size),
        }
        before, after = sizes.get(operation.name, (operation.size, operation.size))
        start = begin + i * 3_000_000
        entry: dict[str, Any] = {
            "record_id": i,
            "pg_id": ids[operation.group],
            "process_group": [
                operation.group if is_json else str(ids[operation.group]),
                "default_pg" if operation.group == "0" else operation.group,
            ],
            "collective_seq_id": sequences.get(operation.group, 0),
            "p2p_seq_id": peers.get(operation.group, 0),
            "op_id": i + 1,
            "profiling_name": name,
            "time_created_ns": start,
            "input_sizes": [[before]],
            "input_dtypes": [operation.dtype],
            "output_sizes": [[after]],
            "output_dtypes": [operation.dtype],
            "state": "completed" if is_done else "started" if is_running and has_timing else "scheduled",
            "time_discovered_started_ns": start + 100_000 if is_running and has_timing else none,
            "time_discovered_completed_ns": start + 900_000 if is_done else none,
            "retired": is_done,
            "timeout_ms": 600_000,
            "is_p2p": operation.peer is not None,
        }
        if not is_json:
            entry["process_group"] = tuple(entry["process_group"])
            entry["frames"] = [{"name": "train_step", "filename": "train.py", "line": 88 + i % 7}]
        if version == "2.7":
            entry |= {"thread_id": "1402", "thread_name": "pt_autograd_0"}
        if is_old:
            del (
                entry["collective_seq_id"],
                entry["p2p_seq_id"],
                entry["is_p2p"],
                entry["process_group"],
                entry["timeout_ms"],
                entry["input_dtypes"],
                entry["output_dtypes"],
            )
            entry["seq_id"] = i + 1 if operation.peer else sequences[operation.group]
        if operation.turn:
            following, previous = (rank + 1) % world, (rank - 1) % world
            entries.append(entry | {"profiling_name": f"nccl:send {rank}->{following}"})
            entries.append(entry | {"profiling_name": f"nccl:recv {rank}<-{previous}"})
            entry |= {"input_sizes": [], "output_sizes": [], "input_dtypes": [], "output_dtypes": []}
        entries.append(entry)
    config: dict[Any, Any] = {
        name if is_json else str(ids[name]): {
            "name": name if is_json else str(ids[name]),
            "desc": "default_pg" if name == "0" else name,
            "ranks": str(list(ranks)),
        }
        for name, ranks in sorted((members | {"0": tuple(range(world))}).items())
    }
    if is_old:
        config = {ids[name]: list(ranks) for name, ranks in (members | {"0": tuple(range(world))}).items()}
    for i, entry in enumerate(entries):
        entry["record_id"] = i
    return {"version": version, "pg_config": config, "entries": entries[-ring:]} | ({} if is_old else {"pg_status": {}})
