"""Commands on runs that can only be read, or lie elsewhere than where they were written: right, or refused.

A table of command by way. Whatever a command comes to, what it was not asked for stays as it is: the place
where the runs were written, the original of a copy, a folder that is read-only.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from assay.cli.main import main
from assay.store.commit_log import CommitLog
from assay.store.objects import open_store
from permissions import read_only
from sample_project import SampleProjects
from variants import soaked

ROWS = [
    {"text": "alpha return", "language": "en", "turns": 1},
    {"text": "beta yield", "language": "de", "turns": 2},
]
COMMANDS = {
    "show": "runs show whole --json",
    "diff": "runs diff whole stopped --json",
    "report": "report whole",
    "report --out": "report whole --out {out}/page.html",
    "audit": "runs audit whole --json",
    "replay": "runs replay whole --step 3 --json",
    "export": "runs export whole --out {out}/model --json",
    "predict": "eval predict whole {out}/rows.jsonl",
    "resume": "train --resume stopped --json",
}
"""`whole` has finished; `stopped` was stopped, and goes on."""


class CommandResult(NamedTuple):
    code: int
    out: str
    err: str

    def parsed(self) -> Any:
        """Its JSON."""
        return json.loads(self.out.strip().splitlines()[-1])


LEDGER_SUFFIXES = ("-shm", "-wal")
"""What SQLite makes to read with."""
Assay = Callable[..., CommandResult]


@pytest.fixture
def assay(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> Assay:
    """Run one of the commands on a home."""
    monkeypatch.delenv("ASSAY_LEDGER", raising=False)
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, ROWS)))

    def run(home: Path, command: str) -> CommandResult:
        monkeypatch.setenv("ASSAY_HOME", str(home))
        shutil.rmtree(tmp_path / "model", ignore_errors=True)
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([word.format(out=tmp_path) for word in command.split()])
        output = capfd.readouterr()
        return CommandResult(int(ended.value.code or 0), output.out, output.err)

    return run


@pytest.fixture(scope="module")
def pristine(
    tiny_dataset: Path, tiny_tree: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path]:
    """A project with dataset and runs: where it was written, and what it was then."""
    folder = tmp_path_factory.mktemp("written")
    project = folder / "project"
    shutil.copytree(tiny_dataset, project / "data")
    tree = {
        **tiny_tree,
        "data": {**tiny_tree["data"], "dataset": str(project / "data")},
        "trainer": {**tiny_tree["trainer"], "max_steps": 6, "commit_every": 2},
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump(tree))
    (folder / "faults.yaml").write_text("faults: [{type: terminate, step: 3}]")
    # In processes of their own: a connection that is closed later deletes files of the next ledger at its path.
    environment = {**os.environ, "ASSAY_HOME": str(project / "runs")}
    environment.pop("ASSAY_LEDGER", None)
    for name, options in (("whole", ()), ("stopped", ("--faults", str(folder / "faults.yaml")))):
        train = [
            sys.executable,
            "-m",
            "assay",
            "train",
            str(folder / "recipe.yaml"),
            "--run-id",
            name,
            *options,
        ]
        subprocess.run(train, env=environment, check=True)
    assert CommitLog(open_store(str(project / "runs/stopped"))).commits()[-1].step == 4
    return project, project.rename(folder / "pristine")


@pytest.fixture
def project(pristine: tuple[Path, Path]) -> Iterator[Path]:
    """The project where it was written, as it was then."""
    location, was = pristine
    shutil.copytree(was, location)
    yield location
    shutil.rmtree(location, ignore_errors=True)


def files(folder: Path) -> dict[str, bytes]:
    """All that lies there; none where there is no such folder."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not path.name.endswith(LEDGER_SUFFIXES)
    }


# The ways: each makes of a project the home that is then used, and says what has to stay as it is.

Way = Callable[[Path, Path], AbstractContextManager[tuple[Path, Path]]]


@contextmanager
def untouched(project: Path, elsewhere: Path) -> Iterator[tuple[Path, Path]]:
    yield project / "runs", project / "data"


@contextmanager
def moved(project: Path, elsewhere: Path) -> Iterator[tuple[Path, Path]]:
    shutil.move(project, elsewhere / "moved")
    yield elsewhere / "moved" / "runs", project


@contextmanager
def moved_to_another_file_system(project: Path, elsewhere: Path) -> Iterator[tuple[Path, Path]]:
    if Path("/dev/shm").stat().st_dev == project.stat().st_dev:
        pytest.skip("/dev/shm is no other file system here")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder, moved(project, Path(folder)) as locations:
        yield locations


@contextmanager
def copied(project: Path, elsewhere: Path) -> Iterator[tuple[Path, Path]]:
    shutil.copytree(project, elsewhere / "copy")
    yield elsewhere / "copy" / "runs", project


@contextmanager
def copied_alone(project: Path, elsewhere: Path) -> Iterator[tuple[Path, Path]]:
    """The runs' folders alone, without dataset and ledger."""
    for name in ("whole", "stopped"):
        shutil.copytree(project / "runs" / name, elsewhere / "home" / name)
    yield elsewhere / "home", project


@contextmanager
def linked(project: Path, elsewhere: Path) -> Iterator[tuple[Path, Path]]:
    (elsewhere / "link").symlink_to(project / "runs")
    yield elsewhere / "link", project / "data"


@contextmanager
def linked_one_by_one(project: Path, elsewhere: Path) -> Iterator[tuple[Path, Path]]:
    """A home of links to runs that lie in another one."""
    (elsewhere / "home").mkdir()
    for name in ("whole", "stopped"):
        (elsewhere / "home" / name).symlink_to(project / "runs" / name)
    yield elsewhere / "home", project / "data"


@contextmanager
def renamed(project: Path, elsewhere: Path) -> Iterator[tuple[Path, Path]]:
    for name in ("whole", "stopped"):
        (project / "runs" / name).rename(project / "runs" / f"renamed-{name}")
    yield project / "runs", project


@contextmanager
def not_to_be_written(project: Path, elsewhere: Path) -> Iterator[tuple[Path, Path]]:
    with read_only(project):
        yield project / "runs", project


READ_ONLY = {
    "report": (1, r"report\.html: cannot write it: Permission denied\..* Or name another file with --out\."),
    "resume": (1, r"runs/stopped/launches/0002\.json: cannot write it: Permission denied\."),
}
A_COPY = {"resume": (2, r"is a copy of run 'stopped', which exists in .*/project/runs/stopped")}
ELSEWHERE_BY_NOW = {
    **dict.fromkeys(("report", "report --out"), (2, r"runs/whole: no such folder, though run 'whole' was")),
    **dict.fromkeys(("audit", "replay", "export", "predict", "resume"), (2, r"run\.json: no such run")),
}
"""What is on record of it is shown."""
VARIANTS: dict[Way, dict[str, tuple[int, str]]] = {
    untouched: {},
    not_to_be_written: READ_ONLY,
    moved: {},
    moved_to_another_file_system: {},
    copied: A_COPY,
    copied_alone: A_COPY,
    linked: {},
    linked_one_by_one: {},
    renamed: ELSEWHERE_BY_NOW,
}
"""Which commands are refused, with what code and words; the others are right."""
QUICKER_VARIANTS = (not_to_be_written, copied_alone, linked, renamed)


def is_right(command: str, result: CommandResult, home: Path, out: Path) -> bool:
    """Whether a command that is not refused came to what it comes to on a run that nobody moved."""
    match command:
        case "show":
            shown = result.parsed()
            return (shown["status"], shown["step"]) == ("succeeded", 6) and Path(shown["run_dir"]).resolve() == (
                home / "whole"
            ).resolve()
        case "diff":
            return [result.parsed()[side] for side in ("before", "after")] == ["whole", "stopped"]
        case "report":
            return "whole" in (home / "whole" / "report.html").read_text()
        case "report --out":
            return "whole" in (out / "page.html").read_text()
        case "audit":
            return result.parsed()["verdict"] == "pass"
        case "replay":
            return result.parsed()["verdict"] == "equal"
        case "export":
            return (result.parsed()["step"], (out / "model" / "assay.json").is_file()) == (6, True)
        case "predict":
            rows = [json.loads(line) for line in result.out.splitlines()]
            return [row["text"] for row in rows] == [row["text"] for row in ROWS] and "probability" in rows[0]
        case "resume":
            shown = result.parsed()
            return (shown["step"], shown["audit"]["verdict"]) == (6, "pass")
    raise AssertionError(command)


@pytest.mark.slow
@pytest.mark.parametrize(
    "way",
    [*QUICKER_VARIANTS, *soaked(*(way for way in VARIANTS if way not in QUICKER_VARIANTS))],
    ids=lambda way: way.__name__,
)
def test_every_command_is_right_or_refused_wherever_a_run_lies(
    way: Way, project: Path, assay: Assay, tmp_path: Path
) -> None:
    with way(project, tmp_path) as (home, retained):
        before = files(retained)
        for command, line in COMMANDS.items():
            response = assay(home, line)
            if (refused := VARIANTS[way].get(command)) is None:
                assert response.code == 0, (command, response)
                assert is_right(command, response, home, tmp_path), (command, response)
            else:
                code, words = refused
                assert (response.code, response.err.count("error: ")) == (code, 1), (command, response)
                assert re.search(words, response.err), (command, response)
        assert files(retained) == before


@pytest.mark.slow
@pytest.mark.parametrize("command", ["show", "audit", "resume"])
def test_a_run_whose_folder_was_renamed_is_refused_by_its_new_name(project: Path, assay: Assay, command: str) -> None:
    with renamed(project, project) as (home, retained):
        before = files(retained)
        response = assay(
            home, COMMANDS[command].replace("whole", "renamed-whole").replace("stopped", "renamed-stopped")
        )
        assert response.code == 2 and "whose folder was renamed or copied. A run keeps its id" in response.err
        assert files(retained) == before


@pytest.mark.slow
def test_a_copy_of_a_run_that_has_finished_is_not_said_to_be_at_its_end_as_well(
    project: Path, assay: Assay, tmp_path: Path
) -> None:
    with copied(project, tmp_path) as (home, _):
        response = assay(home, COMMANDS["resume"].replace("stopped", "whole"))
    assert (response.code, "is a copy of run 'whole'" in response.err) == (2, True)
    assert "has finished" not in response.err


GONE = (
    "runs", "runs show candidate", "runs diff finished candidate", "runs diff candidate finished", "report candidate",
    "report candidate --out {out}/page.html", "decide compare finished candidate", "decide compare candidate finished",
    "decide compare finished candidate --out {out}/page.html", "runs audit candidate", "runs replay candidate --step 3",
    "runs export candidate --out {out}/model", "eval predict candidate {out}/rows.jsonl", "runs goodput candidate",
    "eval history candidate", "eval work candidate", "train stop candidate", "train --resume candidate",
    "runs sink candidate tensorboard:{out}/events", "runs note candidate seen",
)  # fmt: skip
"""Commands that read of a run, or go on with one, whose folder is gone and which is on record still."""


@pytest.mark.slow
def test_no_command_makes_the_folder_of_a_run_that_is_gone(
    tmp_path: Path, assay: Assay, sample_projects: SampleProjects
) -> None:
    home = sample_projects.copy_to(tmp_path)
    shutil.rmtree(home / "candidate")
    for command in GONE:
        response = assay(home, command)
        is_on_record = command == "runs" or command.startswith(
            ("runs show", "runs diff", "runs goodput", "eval history")
        )
        assert response.code == 2 or (response.code == 0 and is_on_record), (command, response)
        assert not (home / "candidate").exists(), command


def test_a_home_that_can_only_be_read_is_shown_and_audited_and_not_trained_in(
    assay: Assay, tmp_path: Path, sample_projects: SampleProjects
) -> None:
    home = sample_projects.copy_to(tmp_path / "project")
    before = files(home)
    with read_only(home):
        shown = assay(home, "runs show finished --json")
        assert (shown.code, shown.parsed()["status"], shown.err) == (0, "succeeded", "")
        audited = assay(home, "runs audit finished --json")
        assert (audited.code, audited.parsed()["verdict"]) == (0, "pass")
        assert "the report was not recorded" in audited.err
        resumed = assay(home, "train --resume unfinished")
        assert (resumed.code, resumed.err.count("error: ")) == (1, 1)
        assert "launches/0002.json: cannot write it: Permission denied" in resumed.err
    assert files(home) == before


@pytest.mark.slow
def test_a_run_that_a_living_process_stopped_training_is_resumed_by_another(
    tmp_path: Path, sample_projects: SampleProjects
) -> None:
    """As of a notebook: the project's runs were trained in a process of this test session."""
    home = sample_projects.copy_to(tmp_path / "project")
    environment = {**os.environ, "ASSAY_HOME": str(home)}
    environment.pop("ASSAY_LEDGER", None)
    command = [sys.executable, "-m", "assay", "train", "--resume", "unfinished"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


READ_ONLY_MOUNT = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && exec "$@"'


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", ["show", "report", "resume", *soaked(*sorted(COMMANDS.keys() - {"show", "report", "resume"}))]
)
def test_every_command_is_right_or_refused_on_a_file_system_that_is_read_only(
    project: Path, tmp_path: Path, requires: Callable[..., None], command: str
) -> None:
    mounting = ["unshare", "--mount", "sh", "-c", READ_ONLY_MOUNT, str(project)]
    tried = subprocess.run([*mounting, "true"], capture_output=True, check=False)
    requires("read-only mounts", tried.returncode == 0, tried.stderr.decode())
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, ROWS)))
    words = [word.format(out=tmp_path) for word in COMMANDS[command].split()]
    home, before = project / "runs", files(project)
    environment = {**os.environ, "ASSAY_HOME": str(home)}
    environment.pop("ASSAY_LEDGER", None)
    done = subprocess.run(
        [*mounting, sys.executable, "-m", "assay", *words],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    response = CommandResult(done.returncode, done.stdout, done.stderr)
    if command in READ_ONLY:
        assert (response.code, response.err.count("error: ")) == (1, 1) and "Read-only file system" in response.err, (
            response
        )
    else:
        assert response.code == 0 and is_right(command, response, home, tmp_path), response
    assert files(project) == before
