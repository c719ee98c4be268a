"""A run lies where it is opened: moved it is itself, a copy of it is not, nothing goes where it once was."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from assay.base.errors import ConfigError
from assay.records.run import Attempt, Run
from assay.store.attempts import save_attempt
from assay.store.home import Home
from assay.store.run_location import opened_in, reject_copy, reject_links
from machine import MACHINE


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A home with a run, its suite, its store and its dataset beside it."""
    project = tmp_path / "project"
    for folder in ("data/manifest.json", "commits/log/0"):
        (project / folder).parent.mkdir(parents=True)
        (project / folder).touch()
    (project / "suite.yaml").touch()
    make_run(project)
    return project


def make_run(project: Path, store_url: str = "", **recipe: object) -> Home:
    home = Home.at(project / "runs")
    folder = home.run_dir("r")
    tree = {"data": {"dataset": str(project / "data")}, "evaluation": {"suite": str(project / "suite.yaml")}}
    run = Run(
        run_id="r", created_s=1.0, recipe=tree | recipe, recipe_sha256="", dataset_fingerprint="",
        code_version="", run_dir=str(folder), store_url=store_url or str(folder), num_steps=10,
    )  # fmt: skip
    home.store_of("r").put("run.json", run.to_json().encode())
    with home.open_ledger() as ledger:
        ledger.record_run(run)
    return home


def moved(project: Path) -> Home:
    present = project.parent / "elsewhere"
    shutil.move(project, present)
    return Home.at(present / "runs")


def test_a_run_that_was_moved_lies_where_it_is_opened_with_all_that_moved_along(project: Path) -> None:
    home = moved(project)
    run, present = home.run("r"), home.folder.parent
    assert (run.run_dir, run.store_url) == (str(present / "runs" / "r"),) * 2
    assert run.recipe["data"]["dataset"] == str(present / "data")
    assert run.recipe["evaluation"]["suite"] == str(present / "suite.yaml")
    reject_copy(run)


def test_a_record_whose_folder_is_no_whole_path_can_be_read(project: Path) -> None:
    home = moved(project)
    record = home.run("r").model_copy(update={"run_dir": "runs/r", "store_url": "runs/r"})
    assert opened_in(record, Path("/elsewhere/runs/r")).recipe["data"] == record.recipe["data"]


def test_the_ledger_says_where_a_run_lies_now(project: Path) -> None:
    with moved(project).open_ledger() as ledger:
        present = str(project.parent / "elsewhere" / "runs" / "r")
        assert [run.run_dir for run in (ledger.run("r"), *ledger.runs())] == [present, present]


def test_a_run_whose_folder_is_a_link_in_the_home_lies_where_that_leads(project: Path) -> None:
    folder, present = project / "runs" / "r", project.parent / "large-disk"
    shutil.move(folder, present)
    folder.symlink_to(present)
    with Home.at(project / "runs").open_ledger() as ledger:
        assert [run.run_dir for run in ledger.runs()] == [str(present)] == [Home.at(project / "runs").run("r").run_dir]


def test_of_runs_that_lie_where_they_were_made_no_path_is_followed(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Home.at(project / "runs").open_ledger() as ledger:
        monkeypatch.setattr(Path, "resolve", None)  # of thousands, that is a fifth of the time of a list
        assert [run.run_dir for run in ledger.runs()] == [str(project / "runs" / "r")]


@pytest.mark.parametrize(("store", "then"), [
    ("project/commits", "elsewhere/commits"), ("project/runs/r/commits", "elsewhere/runs/r/commits"),
    ("s3://bucket/r", "s3://bucket/r"), ("other/commits", "other/commits"),
])  # fmt: skip
def test_a_store_moves_with_the_run_that_it_lies_beside_or_in(project: Path, store: str, then: str) -> None:
    def absolute(path: str) -> str:
        return path if "://" in path else str(project.parent / path)

    make_run(project, store_url=absolute(store))
    assert moved(project).run("r").store_url == absolute(then)


def test_a_dataset_that_stayed_is_read_where_it_is(project: Path) -> None:
    shutil.copytree(project / "runs", project.parent / "elsewhere" / "runs")
    run = Home.at(project.parent / "elsewhere" / "runs").run("r")
    assert run.recipe["data"]["dataset"] == str(project / "data")


def by_hard_links(here: Path, target: Path) -> None:
    shutil.copytree(here, target, copy_function=os.link)


@pytest.mark.parametrize("copy", [shutil.copytree, by_hard_links])
def test_a_copy_may_be_read_and_not_trained(project: Path, copy: Callable[..., object]) -> None:
    copy(project, project.parent / "copy")
    run = Home.at(project.parent / "copy" / "runs").run("r")
    assert run.store_url == run.run_dir == str(project.parent / "copy" / "runs" / "r")
    with pytest.raises(ConfigError, match=rf"copy/runs/r is a copy of run 'r', which exists in {project}/runs/r"):
        reject_copy(run)
    reject_copy(Home.at(project / "runs").run("r"))
    shutil.rmtree(project)
    reject_copy(run)


def test_a_copy_of_a_run_that_went_on_elsewhere_is_one_too(project: Path) -> None:
    home = moved(project)
    run = home.run("r")
    save_attempt(
        Path(run.run_dir),
        Attempt(
            run_id="r",
            attempt=1,
            world_size=1,
            start_step=0,
            started_s=0.0,
            folder=run.run_dir,
            code_version=MACHINE["code_version"],
            processor=MACHINE["processor"],
            environment=MACHINE["environment"],
        ),
    )
    shutil.copytree(home.folder, project / "runs")  # back to where it began
    with pytest.raises(ConfigError, match=f"which exists in {run.run_dir}"):
        reject_copy(Home.at(project / "runs").run("r"))
    reject_copy(run)


def test_a_renamed_folder_is_refused_by_both_names(project: Path) -> None:
    home = Home.at(project / "runs")
    (home.folder / "r").rename(home.folder / "s")
    with pytest.raises(ConfigError, match=r"s/run\.json: this is run 'r', whose folder was renamed or copied"):
        home.run("s")


def test_a_home_behind_a_link_is_the_home(project: Path) -> None:
    (project.parent / "link").symlink_to(project / "runs")
    run = Home.at(project.parent / "link").run("r")
    assert run.run_dir == str(project / "runs" / "r")
    present = project.parent / "bigger-disk"
    shutil.move(project / "runs", present)
    (project / "runs").symlink_to(present)
    run = Home.at(project / "runs").run("r")
    assert run.run_dir == str(present / "r")
    reject_copy(run)


@pytest.mark.parametrize("name", ["incidents.jsonl", "metrics", "metrics/attempt-0001/rank-00000.seg", "log"])
def test_a_link_in_a_runs_folder_is_named_with_what_it_leads_to(tmp_path: Path, name: str) -> None:
    run = tmp_path / "run"
    (run / name).parent.mkdir(parents=True)
    (tmp_path / "link").symlink_to(run)
    reject_links(tmp_path / "link")
    (run / name).symlink_to("/nowhere")
    with pytest.raises(ConfigError, match=rf"run/{name} is a link to /nowhere: .*Nothing was started"):
        reject_links(run)
