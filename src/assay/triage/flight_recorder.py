"""Reads dumps of torch's flight recorder: the collectives that each rank entered, by process group.

A dump is JSON or a pickle of plain dictionaries. Loading a pickle can execute code, so this unpickler rejects
every class and function.
"""

import io
import pickle
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import from_json

from assay.base.digest import sha256_of_bytes
from assay.base.errors import DataError
from assay.base.visible import written_out
from assay.records.hung_ranks import HungGroup, HungRanks
from assay.records.statement import Statement
from assay.triage.attempts.sources import bytes_of


class Collective(BaseModel):
    """A collective that a rank entered, as a dump has it."""

    model_config = ConfigDict(extra="ignore")

    process_group: tuple[str, ...] = ()
    pg_id: int | str = ""
    sequence: int = Field(default=0, alias="collective_seq_id")
    name: str = Field(default="", alias="profiling_name")
    input_sizes: list[list[int] | int] = Field(default_factory=list)
    state: str = ""
    retired: bool = False
    is_p2p: bool = False

    @property
    def group(self) -> str:
        return _group_name(*self.process_group[:2]) if self.process_group else str(self.pg_id)

    @property
    def is_over(self) -> bool:
        """Return whether it ended; gloo shows this only by retiring the entry."""
        return self.retired or self.state == "completed"


class _Group(BaseModel):
    model_config = ConfigDict(extra="ignore")

    name: str = ""
    desc: str = ""
    ranks: str | list[int] = ""

    def members(self) -> tuple[int, ...]:
        in_text = self.ranks if isinstance(self.ranks, list) else map(int, re.findall(r"\d{1,9}", self.ranks))
        return tuple(sorted(in_text))


class _Dump(BaseModel):
    model_config = ConfigDict(extra="ignore")

    version: str
    entries: list[Collective] = Field(default_factory=list)
    pg_config: dict[str, _Group] = Field(default_factory=dict)
    rank: int | None = None


class RankDump(NamedTuple):
    """The recorded collectives of one rank."""

    rank: int
    collectives: tuple[Collective, ...]
    groups: dict[str, tuple[int, ...]]
    """Name -> members, as far as the dump has them."""


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
        dump = _Dump.model_validate(_plain(file, content))
    except ValidationError as error:
        first = error.errors()[0]
        where = written_out(".".join(map(str, first["loc"])))[:80]
        raise DataError(f"{file}: no dump of the flight recorder: {where}: {first['msg']}.") from error
    rank = dump.rank if dump.rank is not None else _rank_in_name(file)
    groups = {_group_name(group.name, group.desc): group.members() for group in dump.pg_config.values()}
    return RankDump(rank, tuple(entry for entry in dump.entries if not entry.is_p2p), groups)


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


def _group_name(name: str = "", desc: str = "") -> str:
    return f"{name} ({desc})" if desc and desc != "undefined" else name


EVERYBODY = "(default_pg)"
"""Part of the name of the group of all ranks."""
EQUAL_SIZES = ("all_reduce", "allreduce", "broadcast", "reduce_scatter_tensor", "all_gather_into_tensor")
"""Collectives whose inputs have equal sizes on all ranks."""


def find_hung_ranks(dumps: Sequence[RankDump], sources: Mapping[str, str]) -> HungRanks:
    """Find the ranks from dumps of the same moment."""
    groups = [found for name in _group_names(dumps) if (found := _hung_group(name, dumps)) is not None]
    waiting = {rank for group in groups for rank in group.waiting}
    blamed = set[int]()
    for group in groups:
        outliers = {rank for ranks in group.others.values() for rank in ranks}
        blamed |= outliers if outliers else (set(group.absent) | set(group.without_dump)) - waiting
    return HungRanks(
        ranks=tuple(sorted(blamed)),
        groups=tuple(groups),
        because=Statement(code=_reason(groups, blamed, {dump.rank for dump in dumps})),
        sources=dict(sources),
    )


def _group_names(dumps: Sequence[RankDump]) -> list[str]:
    return list(dict.fromkeys(collective.group for dump in dumps for collective in dump.collectives))


def _hung_group(name: str, dumps: Sequence[RankDump]) -> HungGroup | None:
    """Return the state of a group; None if no rank waits in it."""
    entered = {
        dump.rank: {collective.sequence: collective for collective in dump.collectives if collective.group == name}
        for dump in dumps
    }
    declared = {rank for dump in dumps for rank in dump.groups.get(name, ())}
    seen = set(entered) if name.endswith(EVERYBODY) else {rank for rank, collectives in entered.items() if collectives}
    members = declared or seen
    sequence = _stuck_at(entered, members)
    if sequence is None:
        return None
    if not declared and all(max(entered[rank], default=-1) >= sequence for rank in seen):
        # Nobody says who is in it, and all who are known to be have come: who wrote no dump has not.
        members |= {rank for dump in dumps for ranks in dump.groups.values() for rank in ranks} - entered.keys()
    at = {rank: entered[rank][sequence] for rank in sorted(members & entered.keys()) if sequence in entered[rank]}
    common, others = _split(at)
    absent = [rank for rank in members & entered.keys() if max(entered[rank], default=-1) < sequence]
    waiting = [rank for rank, collective in at.items() if _called(collective) == common and not collective.is_over]
    return HungGroup(
        group=name,
        ranks=tuple(sorted(members)),
        sequence=sequence,
        collective=common,
        waiting=tuple(waiting),
        absent=tuple(sorted(absent)),
        others=others,
        without_dump=tuple(sorted(members - entered.keys())),
    )


def _stuck_at(entered: Mapping[int, Mapping[int, Collective]], members: set[int]) -> int | None:
    """Return the first number that a rank entered and did not leave."""
    open_at = [
        number
        for rank in members & entered.keys()
        for number, collective in entered[rank].items()
        if not collective.is_over
    ]
    return min(open_at, default=None)


def _split(at: Mapping[int, Collective]) -> tuple[str, dict[str, tuple[int, ...]]]:
    """Return what most ranks entered, and what the others did; in a tie nobody is to blame."""
    ranks = defaultdict[str, list[int]](list)
    for rank, collective in at.items():
        ranks[_called(collective)].append(rank)
    counts = Counter({called: len(members) for called, members in ranks.items()}).most_common()
    common = counts[0][0]
    if len(counts) > 1 and counts[1][1] == counts[0][1]:
        return " or ".join(sorted(called for called, number in counts if number == counts[0][1])), {}
    return common, {called: tuple(members) for called, members in ranks.items() if called != common}


def _called(collective: Collective) -> str:
    """Return the collective's name, with its input sizes if these must agree."""
    if collective.name.rpartition(":")[2].removeprefix("_") in EQUAL_SIZES:
        sizes = [size if isinstance(size, list) else [size] for size in collective.input_sizes]
        return f"{collective.name} of {' and '.join('x'.join(map(str, size)) for size in sizes)}"
    return collective.name


def _reason(groups: Sequence[HungGroup], blamed: set[int], dumped: set[int]) -> str:
    """Return the code of the reason."""
    if not groups:
        return "none waits"
    if blamed:
        return "never entered" if blamed <= dumped else "no dump"
    if any(" or " in group.collective for group in groups):
        return "tie"
    return "circle" if any(group.absent for group in groups) else "all entered"
