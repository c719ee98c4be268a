"""The notices of a run: one line of JSON each, in the run's folder; the supervisor writes them."""

from contextlib import suppress
from pathlib import Path

from assay.base.errors import DataError
from assay.records.notice import Notice

NOTICES_FILE = "notices.jsonl"


def append_notice(run_dir: Path, notice: Notice) -> None:
    """Add one line to the run's notices."""
    with (run_dir / NOTICES_FILE).open("a", encoding="utf-8") as file:
        file.write(notice.to_json() + "\n")


def read_notices(run_dir: Path) -> list[Notice]:
    """All notices of a run, the oldest first; a line that was cut short or changed is left out."""
    path = run_dir / NOTICES_FILE
    if not path.exists():
        return []
    notices = []
    for line in path.read_bytes().split(b"\n"):
        with suppress(DataError):
            notices.append(Notice.from_json(line, source=path))
    return notices
