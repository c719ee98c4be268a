"""The programs and coverage files of a home: with which files a command was called last.

    $ASSAY_HOME/followed/program-NAME.json      written by `assay plan offer`, `status` and `review`
                         coverage-DIGEST.json   written by `assay eval coverage`

The dashboard shows what these commands show, from the same files. Delete an entry to hide it there.
"""

from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from assay.base.config import FrozenConfig
from assay.base.digest import sha256_of_bytes
from assay.base.errors import StoreError
from assay.store.home import Home
from assay.store.objects import open_store

OFFER_FILE = "offer.json"
"""The offer, in the folder that `assay plan offer` writes."""


class FollowedProgram(FrozenConfig):
    """The files of a program, as `assay plan status` was given them."""

    name: str
    file: Path
    folder: Path
    """Folder of the offer."""
    notes: Path | None = None
    hour_s: float = 3600.0
    """Seconds of a program hour."""
    start_s: float | None = None
    """Start since the epoch; null: the first day's date."""

    def command(self) -> str:
        """Return the command that shows the same on a terminal."""
        notes = "" if self.notes is None else f" --notes {self.notes}"
        hour = "" if self.hour_s == 3600.0 else f" --hour-seconds {self.hour_s:g}"
        start = "" if self.start_s is None else f" --start {self.start_s!r}"
        return f"assay plan status {self.file} {self.folder}{notes}{hour}{start}"


class FollowedCoverage(FrozenConfig):
    """A coverage file with its suites, as `assay eval coverage` was given them."""

    file: Path
    suites: tuple[Path, ...]

    def command(self) -> str:
        """Return the command that shows the same on a terminal."""
        return f"assay eval coverage {self.file}{''.join(f' --suite {suite}' for suite in self.suites)}"


Followed = TypeVar("Followed", FollowedProgram, FollowedCoverage)


def follow_program(home: Home, program: FollowedProgram) -> None:
    """Remember the files of a program; those given before count for what is not given. Does nothing if the home does
    not exist yet."""
    name = f"program-{program.name}.json"
    known = home.followed / name
    program = program.model_copy(update={"file": program.file.absolute(), "folder": program.folder.absolute()})
    if program.notes is not None:
        program = program.model_copy(update={"notes": program.notes.absolute()})
    elif known.is_file() and (before := _read(known, FollowedProgram)).folder == program.folder:
        program = program.model_copy(update={"notes": before.notes})
    _write(home, name, program)


def follow_coverage(home: Home, coverage: FollowedCoverage) -> None:
    """Likewise, of a coverage file."""
    file = coverage.file.absolute()
    found = FollowedCoverage(file=file, suites=tuple(suite.absolute() for suite in coverage.suites))
    _write(home, f"coverage-{sha256_of_bytes(str(file).encode())[:12]}.json", found)


def followed_programs(home: Home) -> list[FollowedProgram]:
    """Return the known programs by name. Raises `StoreError` for an entry that cannot be read."""
    return [_read(path, FollowedProgram) for path in sorted(home.followed.glob("program-*.json"))]


def followed_coverages(home: Home) -> list[FollowedCoverage]:
    """Likewise, the coverage files."""
    return [_read(path, FollowedCoverage) for path in sorted(home.followed.glob("coverage-*.json"))]


def _write(home: Home, name: str, entry: FollowedProgram | FollowedCoverage) -> None:
    if home.folder.is_dir():
        open_store(str(home.followed)).put(name, entry.model_dump_json().encode())


def _read(path: Path, kind: type[Followed]) -> Followed:
    try:
        return kind.model_validate_json(path.read_bytes())
    except (ValidationError, OSError) as error:
        raise StoreError(f"{path}: not readable. Delete it; the next '{_WRITERS[kind]}' writes it again.") from error


_WRITERS = {FollowedProgram: "assay plan status", FollowedCoverage: "assay eval coverage"}
