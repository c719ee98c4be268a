"""Reads dumps of torch's flight recorder: the collectives that each rank entered, by process group.

A dump is JSON or a pickle of plain dictionaries. Loading a pickle can execute code, so this unpickler rejects
every class and function.
"""

import io
import pickle
import re
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import from_json

from assay.base.digest import sha256_of_bytes
from assay.base.errors import DataError
from assay.base.visible import written_out
from assay.triage.attempts.sources import bytes_of


class Collective(NamedTuple):
    """A collective that a rank entered."""

    group: str
    sequence: int
    name: str
    sizes: tuple[tuple[int, ...], ...]
    """Sizes of its inputs."""
    is_over: bool
    """Whether it ended; gloo shows this only by retiring the entry."""


class RankDump(NamedTuple):
    """The recorded collectives of one rank."""

    rank: int
    collectives: tuple[Collective, ...]
    groups: dict[str, tuple[int, ...]]
    """Name -> members, as far as the dump has them."""


class _Entry(BaseModel):
    model_config = ConfigDict(extra="ignore")

    process_group: tuple[str, ...] = ()
    pg_id: int | str = ""
    collective_seq_id: int = 0
    profiling_name: str = ""
    input_sizes: list[list[int] | int] = Field(default_factory=list)
    state: str = ""
    retired: bool = False
    is_p2p: bool = False


class _Group(BaseModel):
    model_config = ConfigDict(extra="ignore")

    name: str = ""
    desc: str = ""
    ranks: str | list[int] = ""


class _Dump(BaseModel):
    model_config = ConfigDict(extra="ignore")

    version: str
    entries: list[_Entry] = Field(default_factory=list)
    pg_config: dict[str, _Group] = Field(default_factory=dict)
    rank: int | None = None


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
    groups = {_group_name(group.name, group.desc): _members(group.ranks) for group in dump.pg_config.values()}
    collectives = tuple(
        Collective(
            _group_name(*entry.process_group[:2]) if entry.process_group else str(entry.pg_id),
            entry.collective_seq_id,
            entry.profiling_name,
            tuple(tuple(size) if isinstance(size, list) else (size,) for size in entry.input_sizes),
            entry.retired or entry.state == "completed",
        )
        for entry in dump.entries
        if not entry.is_p2p
    )
    return RankDump(rank, collectives, groups)


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


def _members(ranks: str | list[int]) -> tuple[int, ...]:
    found = ranks if isinstance(ranks, list) else [int(number) for number in re.findall(r"\d{1,9}", ranks)]
    return tuple(sorted(found))
