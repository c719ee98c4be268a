"""Reads dumps of torch's flight recorder, and finds the ranks for which the others wait.

A rank is in the first operation that it issued and that has not ended. There it waits for the ranks that issued another
one in its place; else for those that never issued it, that are still in an earlier operation, or lack a dump; else for
those whose device has not begun it; else for those that issued nothing after it although all others went on, as does a
rank whose device died. Ranks that are waited for and wait for nobody are named.

A dump is JSON or a pickle of plain dictionaries. Loading a pickle can execute code, so this unpickler rejects
every class and function.
"""

import io
import pickle
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import from_json

from assay.base.digest import sha256_of_bytes
from assay.base.errors import DataError
from assay.base.visible import written_out
from assay.records.hung_ranks import HungGroup, HungRanks
from assay.records.statement import Statement
from assay.triage.attempts.sources import bytes_of


class Operation(BaseModel):
    """A collective, send or receive that a rank issued, as a dump has it. Older dumps lack some fields."""

    model_config = ConfigDict(extra="ignore")

    process_group: tuple[str, ...] = ()
    pg_id: int | str = ""
    sequence: int = Field(default=0, validation_alias=AliasChoices("collective_seq_id", "seq_id"))
    transfer: int = Field(default=0, alias="p2p_seq_id")
    """Number of a send or receive."""
    name: str = Field(default="", alias="profiling_name")
    input_sizes: list[list[int] | int] = Field(default_factory=list)
    input_dtypes: list[str] = Field(default_factory=list)
    state: str = ""
    retired: bool = False
    is_transfer: bool = Field(default=False, alias="is_p2p")

    @property
    def group(self) -> str:
        return _group_name(*self.process_group[:2]) if self.process_group else str(self.pg_id)

    @property
    def direction_and_peer(self) -> tuple[str, int] | None:
        """Return `send` or `recv` and the other side's index in the group; None for other operations."""
        found = re.search(r"\b(send|recv) \d+(?:->|<-)(\d+)$", self.name)
        return None if found is None else (found[1], int(found[2]))

    @property
    def is_p2p(self) -> bool:
        return self.is_transfer or self.direction_and_peer is not None

    @property
    def is_over(self) -> bool:
        """Return whether it ended; gloo shows this only by retiring the entry."""
        return self.retired or self.state == "completed"


class _Group(BaseModel):
    model_config = ConfigDict(extra="ignore")

    name: str = ""
    desc: str = ""
    ranks: str | list[int] = ""


class _Dump(BaseModel):
    model_config = ConfigDict(extra="ignore")

    version: str = ""
    entries: list[Operation]
    pg_config: dict[str | int, _Group | list[int]] = Field(default_factory=dict)
    """Versions before 2.0 have the ranks by number of the group."""
    rank: int | None = None


class RankDump(NamedTuple):
    """The recorded collectives of one rank."""

    rank: int
    operations: tuple[Operation, ...]
    groups: dict[str, tuple[int, ...]]
    """Name -> members, as far as the dump has them."""

    def collectives(self, group: str) -> dict[int, Operation]:
        """Return the collectives of a group by number; of those that were coalesced, the last."""
        return {entry.sequence: entry for entry in self.operations if entry.group == group and not entry.is_p2p}

    def heads(self) -> list[Operation]:
        """Return the operations that the rank is in: the first that has not ended, or the transfers up to the next
        collective."""
        transfers = [entry for *_, entry in self.open_transfers()]
        collectives = [entry for entry in self.operations if not entry.is_p2p and not entry.is_over]
        if not collectives:
            return transfers
        position = self.operations.index(collectives[0])
        return [entry for entry in transfers if self.operations.index(entry) < position] or collectives[:1]

    def open_transfers(self) -> Iterator[tuple[str, int, Operation]]:
        """Yield direction, peer and operation of each send or receive that has not ended.

        Only the entry that closes a batch of them has a state.
        """
        batches = {entry.transfer for entry in self.operations if entry.is_p2p and entry.name.endswith("coalesced")}
        ended = {entry.transfer for entry in self.operations if entry.transfer in batches and entry.is_over}
        for entry in self.operations:
            if (found := entry.direction_and_peer) and not entry.is_over and entry.transfer not in ended:
                direction, index = found
                members = self.groups.get(entry.group) or range(index + 1)
                if index < len(members):
                    yield direction, members[index], entry


class _PlainUnpickler(pickle.Unpickler):
    """Unpickles only dictionaries, lists, strings and numbers."""

    def find_class(self, module: str, name: str) -> Any:
        """Reject every class and function."""
        raise pickle.UnpicklingError(f"it names {written_out(f'{module}.{name}')[:80]}")

    def persistent_load(self, pid: Any) -> Any:  # noqa: ARG002
        raise pickle.UnpicklingError("it refers to something outside of it")


def read_dumps(folder: Path) -> tuple[list[RankDump], dict[str, str]]:
    """Read all dumps of a folder, in order of rank, with each file's SHA-256."""
    files = sorted(file for file in folder.iterdir() if file.is_file() and not file.name.startswith("."))
    dumps, sources = dict[int, RankDump](), dict[str, str]()
    for file in files:
        content = bytes_of(file)
        dump = read_dump(file, content)
        if dump.rank in dumps:
            raise DataError(f"{file}: a second dump of rank {dump.rank}. Give a folder with one moment's dumps.")
        dumps[dump.rank], sources[str(file)] = dump, sha256_of_bytes(content)
    if not dumps:
        raise DataError(
            f"{folder}: no dump in it. A hung attempt of assay leaves them in RUN/stacks/attempt-NNNN-flight, "
            "torch where TORCH_FR_DUMP_TEMP_FILE says."
        )
    return [dumps[rank] for rank in sorted(dumps)], sources


def read_dump(file: Path, content: bytes) -> RankDump:
    """Read one rank's dump; unless the dump states its rank, it is the last number of the file name."""
    try:
        tree = _plain(file, content)
        # The first versions wrote the entries alone.
        dump = _Dump.model_validate({"entries": tree} if isinstance(tree, list) else tree)
    except ValidationError as error:
        first = error.errors()[0]
        where = written_out(".".join(map(str, first["loc"])))[:80]
        raise DataError(f"{file}: no dump of the flight recorder: {where}: {first['msg']}.") from error
    rank = dump.rank if dump.rank is not None else _rank_in_name(file)
    groups = {
        str(number) if isinstance(group, list) else _group_name(group.name, group.desc): _members(group)
        for number, group in dump.pg_config.items()
    }
    return RankDump(rank, tuple(dump.entries), groups)


def _plain(file: Path, content: bytes) -> Any:
    try:
        if content[:1] == b"\x80":
            return _PlainUnpickler(io.BytesIO(content)).load()
        return from_json(content)
    except pickle.UnpicklingError as error:
        raise DataError(f"{file}: a pickle that is cut or no plain data: {error}. Nothing of it ran.") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{file}: neither JSON nor a pickle, or cut. Expected a flight recorder's dump.") from error
    except (EOFError, LookupError, AttributeError, TypeError, OverflowError, MemoryError) as error:
        raise DataError(f"{file}: a pickle that is cut or damaged. Ask the rank for its dump again.") from error


def _rank_in_name(file: Path) -> int:
    numbers = re.findall(r"\d+", file.stem if file.suffix in (".json", ".pkl", ".pickle") else file.name)
    if not numbers:
        raise DataError(f"{file}: of which rank is it? Its name has to end in the rank's number.")
    return int(numbers[-1])


def _members(group: _Group | list[int]) -> tuple[int, ...]:
    ranks = group.ranks if isinstance(group, _Group) else group
    return tuple(sorted(ranks if isinstance(ranks, list) else map(int, re.findall(r"\d{1,9}", ranks))))


def _group_name(name: str = "", desc: str = "") -> str:
    return f"{name} ({desc})" if desc and desc != "undefined" else name


EVERYBODY = "(default_pg)"
"""Part of the name of the group of all ranks."""
EQUAL_SIZES = re.compile(
    r"_?(?:all_?reduce|broadcast|reduce_scatter|all_gather)(?:_tensor|_into_tensor|_base|_single)?(?:_barrier)?", re.I
)
"""Operations whose inputs have equal sizes on all ranks."""


def find_hung_ranks(dumps: Sequence[RankDump], sources: Mapping[str, str]) -> HungRanks:
    """Find the ranks from dumps of the same moment: those that others wait for, and that wait for nobody."""
    heads = {dump.rank: dump.heads() for dump in dumps}
    blocking = dict.fromkeys(
        (head.group, head.sequence) for found in heads.values() for head in found if not head.is_p2p
    )
    blocked = [_blocked_group(*operation, dumps, heads) for operation in blocking]
    blocked += _blocked_pairs(dumps, heads)
    waits_for = defaultdict[int, set[int]](set)
    for group, awaited in blocked:
        for rank in group.waiting:
            waits_for[rank] |= awaited
    missing = {rank for group, _ in blocked if group.waiting for rank in (*group.absent, *group.without_dump)}
    singled_out = {rank for group, _ in blocked for rank in _singled_out(group)}
    # A rank that is in an operation, and waits for none in particular, is stuck itself.
    stuck = {rank for rank, found in heads.items() if found} - singled_out
    blamed = {rank for rank in (missing - stuck) | singled_out if not waits_for.get(rank)}
    return HungRanks(
        ranks=tuple(sorted(blamed)), groups=tuple(group for group, _ in blocked),
        because=Statement(code=_reason(blocked, blamed, heads.keys())), sources=dict(sources),
    )  # fmt: skip


Blocked = tuple[HungGroup, set[int]]
"""An operation that has not ended, and the ranks for which those in it wait."""


def _singled_out(group: HungGroup) -> set[int]:
    """Return the ranks that are in an operation in another way than the rest."""
    return {*(rank for ranks in group.others.values() for rank in ranks), *group.not_started, *group.stopped}


def _blocked_group(
    name: str, sequence: int, dumps: Sequence[RankDump], heads: Mapping[int, Sequence[Operation]]
) -> Blocked:
    """Return the state of a collective in which some rank waits."""
    entered = {dump.rank: dump.collectives(name) for dump in dumps}
    declared = {rank for dump in dumps for rank in dump.groups.get(name, ())}
    seen = set(entered) if name.endswith(EVERYBODY) else {rank for rank, entries in entered.items() if entries}
    members = declared or seen
    if not declared and all(max(entered[rank], default=-1) >= sequence for rank in seen):
        # Nobody says who is in it, and all who are known to be have come: who wrote no dump has not.
        members |= {rank for dump in dumps for ranks in dump.groups.values() for rank in ranks} - entered.keys()
    at = {rank: entered[rank][sequence] for rank in sorted(members & entered.keys()) if sequence in entered[rank]}
    common, others = _split(at)
    unfinished = {rank: entry for rank, entry in at.items() if _called(entry) == common and not entry.is_over}
    inside = {rank for rank, entry in unfinished.items() if entry in heads[rank] or entry.state == "started"}
    elsewhere = unfinished.keys() - inside
    absent = {rank for rank in members & entered.keys() if max(entered[rank], default=-1) < sequence}
    without_dump = members - entered.keys()
    blocking = {rank for ranks in others.values() for rank in ranks}
    blocking = blocking or absent | without_dump | elsewhere
    not_started, stopped = set[int](), set[int]()
    if not blocking:
        not_started = blocking = _minority({rank for rank in inside if at[rank].state == "scheduled"}, inside)
    if not blocking:
        last = {dump.rank: dump.operations[-1] for dump in dumps if dump.operations}
        is_left = any(entry.is_over for entry in at.values())
        stopped = blocking = _minority({rank for rank in inside if is_left or last[rank] is at[rank]}, at)
    group = HungGroup(
        group=name, ranks=tuple(sorted(members)), sequence=sequence, collective=common,
        waiting=tuple(sorted(inside - blocking)), absent=tuple(sorted(absent)), not_started=tuple(sorted(not_started)),
        stopped=tuple(sorted(stopped)), others=others, without_dump=tuple(sorted(without_dump)),
    )  # fmt: skip
    return group, blocking


def _minority(ranks: set[int], among: Collection[int]) -> set[int]:
    """Return the ranks if they are fewer than the rest, or one of two; else what they share is nothing special."""
    return ranks if 2 * len(ranks) < len(among) or (len(ranks), len(among)) == (1, 2) else set()


def _blocked_pairs(dumps: Sequence[RankDump], heads: Mapping[int, Sequence[Operation]]) -> Iterator[Blocked]:
    """Yield each send or receive in which a rank waits, and whose other side is not in its own."""
    unfinished = {
        (dump.rank, peer, way): entry
        for dump in dumps
        for way, peer, entry in reversed(list(dump.open_transfers()))  # the first of each kind counts
    }
    for (rank, peer, way), entry in unfinished.items():
        reply = unfinished.get((peer, rank, "recv" if way == "send" else "send"))
        if entry not in heads[rank] or (reply is not None and reply in heads[peer]):
            continue
        group = HungGroup(
            group=entry.group, ranks=tuple(sorted((rank, peer))), sequence=entry.transfer, collective=entry.name,
            waiting=(rank,), absent=(peer,) if peer in heads and reply is None else (), others={},
            without_dump=() if peer in heads else (peer,),
        )  # fmt: skip
        yield group, {peer}


def _split(at: Mapping[int, Operation]) -> tuple[str, dict[str, tuple[int, ...]]]:
    """Return what most ranks entered, and what the others did; in a tie nobody is to blame."""
    ranks = defaultdict[str, list[int]](list)
    for rank, collective in at.items():
        ranks[_called(collective)].append(rank)
    counts = Counter({called: len(members) for called, members in ranks.items()}).most_common()
    common = counts[0][0]
    if len(counts) > 1 and counts[1][1] == counts[0][1]:
        return " or ".join(sorted(called for called, number in counts if number == counts[0][1])), {}
    return common, {called: tuple(members) for called, members in ranks.items() if called != common}


def _called(entry: Operation) -> str:
    """Return the collective's name, with its input's sizes and types if these must agree."""
    if not EQUAL_SIZES.fullmatch(entry.name.rpartition(":")[2]):
        return entry.name
    sizes = [size if isinstance(size, list) else [size] for size in entry.input_sizes]
    types = "".join(f", {name}" for name in dict.fromkeys(entry.input_dtypes))
    return f"{entry.name} of {' and '.join('x'.join(map(str, size)) for size in sizes)}{types}"


def _reason(blocked: Sequence[Blocked], blamed: set[int], dumped: Collection[int]) -> str:
    """Return the code of the reason."""
    groups = [group for group, _ in blocked]
    if not groups:
        return "none waits"
    if not blamed:
        if any(" or " in group.collective for group in groups):
            return "tie"
        return "circle" if all(blocking for _, blocking in blocked) else "all entered"
    if not blamed <= set(dumped):
        return "no dump"
    if any(blamed & {*group.absent, *(rank for ranks in group.others.values() for rank in ranks)} for group in groups):
        return "never entered"
    return "not started" if any(blamed & set(group.not_started) for group in groups) else "issued no more"
