"""Every file of a home and of what runs are made from, put there by somebody who means harm: nothing runs."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from assay.base.errors import AssayError, ConfigError
from assay.cli.main import cli
from assay.elastic.capsules import capsules, save_capsule
from assay.evals import commit_model
from assay.evals.commit_model import load_committed
from assay.models.causal import load_causal
from assay.store.commit_log import CommitLog
from assay.store.home import Home
from assay.store.objects import open_store
from payloads import Payload, planted
from sample_project import SampleProjects

READERS = {
    "runs/finished/*": ("runs audit finished", "runs show finished", "runs --rebuild", "runs goodput finished"),
    "runs/finished/**/*": ("runs audit finished", "runs --rebuild", "report finished", "eval history finished"),
    "runs/unfinished/**/*": ("runs --rebuild", "train --resume unfinished --workers 99"),
    "runs/campaigns/**/*": ("runs --rebuild", "decide again small"),
    "dataset/**/*": ("data show {dataset}", "runs audit finished", "train {recipe} --check"),
    "*": ("train {recipe} --check --measure 0",),  # ranks read none of them
}
"""The commands that open what lies there."""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, sample_projects: SampleProjects) -> Path:
    """A project with a campaign and a capsule."""
    folder = tmp_path_factory.mktemp("strangers")
    home = Home.at(sample_projects.copy_to(folder, campaign=True))
    run = home.run("finished")
    save_capsule(run, CommitLog(open_store(run.store_url)), step=6, reason="a test")
    return folder


@pytest.fixture(autouse=True)
def at_home(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASSAY_HOME", str(project / "runs"))
    monkeypatch.delenv("ASSAY_LEDGER", raising=False)
    # As if the log named the digest of what was planted: whoever changes a file can change the log.
    monkeypatch.setattr(commit_model, "first_problem", lambda *_: None)


def open_all(project: Path, where: str) -> Iterator[str]:
    """What everybody says who opens what lies there."""
    locations = {"dataset": project / "dataset", "recipe": project / "recipe.yaml"}
    for command in READERS[where]:
        response = CliRunner().invoke(cli, [word.format(**locations) for word in command.split()])
        yield f"{command}: {response.output} {response.exception!r}"
    try:
        run = Home.from_environment().run("finished")
        log = CommitLog(open_store(run.store_url))
        retained = [capsule.commit for capsule in capsules(log.store) if capsule.commit]
        for commit in [*log.commits(), *retained]:
            load_committed(run, commit, log.store)
    except AssayError as error:
        yield str(error)


@pytest.mark.slow
@pytest.mark.parametrize("where", READERS)
def test_what_is_planted_in_any_file_of_a_run_or_a_dataset_does_not_run(
    project: Path, tmp_path: Path, where: str
) -> None:
    payload = Payload(tmp_path / "it ran")
    files = [path for path in sorted(project.glob(where)) if path.is_file() and not path.name.startswith("ledger")]
    kinds = {re.sub(r"[0-9a-f]{8,}|\d+", "#", str(path.relative_to(project))): path for path in files}
    assert kinds
    for path in kinds.values():
        before = path.read_bytes()
        for data in planted(path, payload):
            path.write_bytes(data)
            output = list(open_all(project, where))
            assert not payload.ran(), f"{path}: {output}"
        path.write_bytes(before)


CODE = "import os\nos.mkdir({marker!r})\nfrom transformers import GPT2Config as C, GPT2LMHeadModel as M\n"


@pytest.mark.parametrize("kind", ["weights", "code"])
def test_a_folder_of_a_model_runs_nothing_and_asks_nothing(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    payload, folder = Payload(tmp_path / "it ran"), tmp_path / "model"
    folder.mkdir()
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    config: dict[str, Any] = {"model_type": "gpt2", "n_embd": 8, "n_layer": 1, "n_head": 1, "vocab_size": 9}
    config |= {"bos_token_id": 1, "eos_token_id": 1}
    if kind == "weights":
        torch.save({"transformer.wte.weight": payload}, folder / "pytorch_model.bin")
    else:
        config |= {"model_type": "own", "auto_map": {"AutoConfig": "own.C", "AutoModelForCausalLM": "own.M"}}
        (folder / "own.py").write_text(CODE.format(marker=str(payload.marker)))
        torch.save({}, folder / "pytorch_model.bin")
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match="not a causal language model"):
        load_causal(str(folder))
    assert not payload.ran()


def test_a_package_with_dots_in_its_name_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    payload = Payload(tmp_path / "it ran")
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "__init__.py").write_text(f"import os\nos.mkdir({str(payload.marker)!r})\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match=r"'theirs\.model' is not installed"):
        load_causal("package:theirs.model/x")
    assert not payload.ran()


@pytest.mark.parametrize("name", ["../out", "/elsewhere/out", "..", "a/b", "a\nb", "campaigns"])
def test_no_command_makes_or_reads_a_run_outside_of_its_home(project: Path, name: str) -> None:
    before = sorted(project.rglob("*"))
    new = ("train", str(project / "recipe.yaml"), "--run-id", name)
    for command in (new, ("train", "--resume", name), ("runs", "audit", name), ("runs", "replay", name, "--step", "1")):
        response = CliRunner().invoke(cli, command)
        assert isinstance(response.exception, ConfigError), response.output
        assert re.search("is not a valid name|is the folder of all campaigns|^no run", str(response.exception))
    assert sorted(project.rglob("*")) == before


def test_a_recipes_name_is_that_of_one_folder(project: Path) -> None:
    recipe = project / "recipe.yaml"
    response = CliRunner().invoke(cli, ["train", str(recipe), "name=../out", "--check"])
    assert isinstance(response.exception, ConfigError)
    assert "name (override): '../out' is not a valid name" in str(response.exception)


FILES_OF_PEOPLE = (
    "train {file}", "train {recipe} --faults {file}", "decide run {file}", "plan solve {file}",
    "plan offer {file}", "eval run {model} --suite {file}", "eval coverage {file} --suite {file}",
    "eval import {file}", "decide proxy {file}", "scaling fit {file}",
    "data build {file} --out {out} --tokenizer {file}",
)  # fmt: skip


@pytest.mark.parametrize("command", FILES_OF_PEOPLE)
def test_a_file_that_a_person_names_constructs_nothing(project: Path, tmp_path: Path, command: str) -> None:
    payload = Payload(tmp_path / "it ran")
    for suffix in (".yaml", ".json", ".jsonl", ".csv", ".eval"):
        file = tmp_path / f"theirs{suffix}"
        locations = {"file": file, "recipe": project / "recipe.yaml", "model": tmp_path, "out": tmp_path / "out"}
        for data in planted(file, payload):
            file.write_bytes(data)
            response = CliRunner().invoke(cli, [word.format(**locations) for word in command.split()])
            assert isinstance(response.exception, AssayError), (response.output, response.exception)
            assert not payload.ran(), response.output
