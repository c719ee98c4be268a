"""A command that only has to say that something is not there says so before it has imported anything large.

Times differ between machines; what is imported does not. `benchmarks/commands.py` measures the times.
"""

import datetime
import json
import os
import subprocess
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from assay.base.config import LoadedConfig
from assay.cli.main import cli
from assay.data.dataset.index import index_dataset
from assay.planning.program.new import new_program
from assay.records.run import Run
from assay.store.home import Home
from assay.workflows.run import create_run
from commands import EMPTY_HOME_COMMANDS, NEEDS_NOTHING
from tiny_recipe import tiny_recipe

LARGE = {
    "duckdb", "jinja2", "numpy", "obstore", "ortools", "pandas", "pyarrow", "rich", "safetensors", "scipy",
    "sklearn", "sqlalchemy", "statsmodels", "tokenizers", "torch", "transformers",
}  # fmt: skip

LOOK = """
import importlib, io, json, os, sys
from assay.cli.main import main
large = set(json.loads(sys.argv[1]))
for command in json.loads(sys.argv[2]):
    ours, theirs = os.pipe()
    known = set(sys.modules)
    if os.fork() == 0:
        code, sys.stdout, sys.stderr = 0, io.StringIO(), io.StringIO()
        try:
            main(command.split())
        except SystemExit as ended:
            code = ended.code
        found = sorted(large & set(sys.modules))
        server = sys.modules.get("multiprocessing.forkserver")
        if server and server._forkserver._forkserver_pid:
            found.append("fork server")
        light = not set(found) & set(sys.argv[3:])
        new = [name for name in set(sys.modules) - known if name.startswith("assay.") and light]
        os.write(theirs, json.dumps([command, code, sys.stderr.getvalue()[-2000:], found, new]).encode())
        os._exit(0)
    os.close(theirs)
    *answer, new = json.loads(os.fdopen(ours).read())
    sys.stdout.write(json.dumps(answer) + "\\n")
    os.wait()
    for name in new if sys.argv[3:] else ():
        importlib.import_module(name)
"""
"""Each command in a process that has imported the command line and no more; with further arguments, also what
the commands before it imported, but for one of the modules that these name: then many of them take a moment."""


def test_every_command_is_asked_for_something_that_is_not_there() -> None:
    request = {*EMPTY_HOME_COMMANDS, *NEEDS_NOTHING}
    leaves = set(_leaves(cli, []))
    assert {leaf for leaf in leaves if not any(f"{text} ".startswith(f"{leaf} ") for text in request)} == set()


def _leaves(command: click.Command, path: list[str]) -> list[str]:
    if not isinstance(command, click.Group):
        return [" ".join(path)]
    context = click.Context(command)
    own = [" ".join(path)] if command.params[1:] else []  # a group that is a command as well: 'assay train'
    return own + [
        leaf
        for name in command.list_commands(context)
        if (child := command.get_command(context, name))
        for leaf in _leaves(child, [*path, name])
    ]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with one run, so that there is a ledger to look in."""
    run = Run(
        run_id="tiny-1", created_s=0.0, recipe=tiny_recipe(), recipe_sha256="", dataset_fingerprint="",
        code_version="", run_dir=str(tmp_path / "tiny-1"), store_url=str(tmp_path / "tiny-1"), num_steps=10,
    )  # fmt: skip
    with Home.at(tmp_path).open_ledger() as ledger:
        ledger.record_run(run)
    return tmp_path


def test_what_is_not_there_is_said_before_anything_large_is_imported(home: Path) -> None:
    found = _outcomes(home, EMPTY_HOME_COMMANDS)
    assert [command for command, *_ in found] == list(EMPTY_HOME_COMMANDS)
    assert [item for item in found if item[1] != 2] == []
    assert [(command, modules) for command, _, _, modules in found if modules] == []


def test_the_list_of_runs_imports_nothing_large(home: Path) -> None:
    assert _outcomes(home, ("runs", "runs --json")) == [["runs", 0, "", []], ["runs --json", 0, "", []]]


def test_a_run_is_shown_without_what_computes(home: Path) -> None:
    ((_, code, output, modules),) = _outcomes(home, ("runs show tiny-1",))
    assert (code, output, set(modules) - {"numpy", "obstore", "rich"}) == (0, "", set())


def test_what_is_written_for_programs_needs_nothing_that_draws(home: Path) -> None:
    ((_, code, output, modules),) = _outcomes(home, ("runs show tiny-1 --json",))
    assert (code, output, set(modules) - {"numpy", "obstore"}) == (0, "", set())


BEGIN = """
import json, sys
from assay.cli.main import main
from assay.elastic import fork_server
def begin():
    print(json.dumps([name for name in sys.argv[1:] if name in sys.modules]))
    sys.exit()
fork_server.fork_context = begin
main(["train", "recipe.yaml"])
"""


def test_the_server_of_the_ranks_begins_before_the_command_imports_anything_large(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text("name: of no matter")
    output = subprocess.run(
        [sys.executable, "-c", BEGIN, *sorted({*LARGE, "yaml"})],
        cwd=tmp_path, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    assert json.loads(output) == []


HEAVY = {"duckdb", "ortools", "sklearn", "statsmodels", "torch", "transformers", "fork server"}
"""What computes: to judge what is asked of a run, a dataset or a program, none of it is needed."""
WRONG = (
    ("runs replay RUN --step 0", "the run has the steps 1 to 3"),
    ("runs replay RUN --step 4", "the run has the steps 1 to 3"),
    ("runs replay RUN --step 2 --through 1", "--through 1"),
    ("runs replay RUN --step 2 --lane 8", "the lanes 0 to 7"),
    ("runs replay RUN --step 2 --attempt 7", "--attempt 7"),
    ("runs replay RUN --step 2 --watch --audit-ops", "give one of them"),
    ("runs rollout RUN --step 2 --row 0", "trains on the rows of its dataset"),
    ("train recipe.yaml --run-id RUN", "exists in"),
    ("train recipe.yaml --run-id a/b", "a/b"),
    ("train recipe.yaml --workers 9", "--workers 9"),
    ("train recipe.yaml trainer.lr=3", "trainer.lr"),
    ("train recipe.yaml --faults rows.csv", "rows.csv"),
    ("train recipe.yaml --from RUN", "not an override"),
    ("train recipe.yaml --resume RUN", "never changes"),
    ("train --resume RUN trainer.epochs=2", "never changes"),
    ("train --resume RUN --store elsewhere", "--store elsewhere"),
    ("train --resume RUN --run-id another", "--run-id another"),
    ("train --resume RUN --check", "--check needs a RECIPE"),
    ("eval predict RUN rows.csv --text words2", "no column 'words2'"),
    ("eval predict RUN rows.csv --text words --out rows.csv", "rows.csv: exists already"),
    ("eval predict RUN rows.csv --text words --out rows.csv --force", "this is the input file"),
    ("eval predict RUN rows.csv --text words --out rows.doc", "unknown suffix"),
    ("eval predict RUN rows.csv --text words", "has no commit"),
    ("eval predict ./ rows.csv --text words", "no exported model"),
    ("runs export RUN --step 2", "has no commit of step 2"),
    ("runs sink RUN nothing:x", "nothing"),
    ("runs import rows.csv", "no runs of a known tool"),
    ("eval run nowhere --suite suite.yaml", "nowhere"),
    (
        "eval run nowhere --suite suite.yaml --endpoint http://127.0.0.1:9 --judge-model m",
        "--judge-model needs",
    ),
    ("eval work RUN", "suite"),
    ("eval import rows.csv", "rows.csv"),
    ("eval history RUN", "no benchmark results"),
    ("eval coverage recipe.yaml --suite suite.yaml", "recipe.yaml"),
    ("data split dataset --fraction 3", "fraction"),
    ("data split dataset --by nothing", "nothing"),
    ("data build rows.csv --out new --text words2 --label label --tokenizer new:300", "words2"),
    (
        "data build rows.csv --out new --text words --no-label --label-kind number --tokenizer new:300",
        "--label-kind",
    ),
    ("data score dataset --reference nowhere --out new", "nowhere"),
    ("train new dataset --out recipe.yaml", "recipe.yaml"),
    ("train drill recipe.yaml --steps 3", "--steps 3"),
    ("train drill recipe.yaml --out nowhere/record.json", "the folder nowhere does not exist"),
    ("decide compare RUN RUN", "has not been evaluated"),
    ("decide run recipe.yaml", "recipe.yaml"),
    ("decide run recipe.yaml --runs-at-once 2", "--runs-at-once"),
    ("plan check recipe.yaml", "recipe.yaml"),
    ("plan offer recipe.yaml", "recipe.yaml"),
    ("plan risk program.yaml --option nothing", "no option 'nothing'"),
    ("plan solve program.yaml --option nothing", "no option 'nothing'"),
    ("plan solve program.yaml --progress rows.csv", "belong together"),
    ("plan what-if program.yaml nothing", "no what-if 'nothing'"),
    ("plan export program.yaml rows.csv --format csv", "rows.csv"),
    ("plan status program.yaml .", "offer"),
    ("scaling fit rows.csv --predict size=3", "--predict size=3"),
    ("scaling fit rows.csv rows.csv", "2 files given"),
    ("scaling fit RUN --score words", "--score names a column"),
    ("scaling code-length RUN RUN RUN", "are not pairs"),
    ("decide power --items 100 --effect 0.5", "--effect"),
)
"""Commands of which everything is there, and something is wrong all the same; and what is said of it."""


@pytest.fixture
def furnished(tmp_path: Path) -> Path:
    """A home with a run that has yet to begin, its dataset, and a file of every kind."""
    (tmp_path / "rows").mkdir()
    rows = {"input_ids": [[1, 2, 3]] * 20, "label": [0, 1] * 10, "shard_id": [f"s{n}" for n in range(20)]}
    pq.write_table(pa.table(rows), tmp_path / "rows" / "a.parquet")
    index_dataset(str(tmp_path / "rows"), tmp_path / "dataset", name="tiny")
    data = {"dataset": str(tmp_path / "dataset"), "split": {"type": "hash", "validation_fraction": 0.2}}
    loader = {"lanes": 8, "global_batch_size": 8, "window_rows": 8}
    recipe = tiny_recipe(data=data, loader=loader, trainer={"max_steps": 3, "epochs": 9})
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    (tmp_path / "rows.csv").write_text("words,label\na b,1\nc d,0\n")
    (tmp_path / "suite.yaml").write_text("name: s\nbenchmarks: [{type: bits_per_byte, name: b, files: [rows.csv]}]\n")
    new_program(tmp_path / "program.yaml", start=datetime.date(2027, 1, 4))
    create_run(Home.at(tmp_path), LoadedConfig(recipe, {}), run_id="RUN")
    with Home.at(tmp_path).open_ledger() as ledger:
        ledger.record_run(Home.at(tmp_path).run("RUN"))
    return tmp_path


@pytest.mark.slow
def test_what_is_wrong_is_said_before_what_computes_is_imported(furnished: Path) -> None:
    found = _outcomes(furnished, [command for command, _ in WRONG], HEAVY)
    assert [
        (command, output) for (command, part), (_, _, output, _) in zip(WRONG, found, strict=True) if part not in output
    ] == []
    assert [(command, code) for command, code, *_ in found if code != 2] == []
    assert [(command, left) for command, _, _, large in found if (left := {*large} & HEAVY)] == []


def _outcomes(home: Path, commands: Sequence[str], heavy: Collection[str] = ()) -> list[Any]:
    """For each: the command, its exit code, the end of what it said, and what it imported of `LARGE`."""
    responses = subprocess.run(
        [sys.executable, "-c", LOOK, json.dumps(sorted(LARGE)), json.dumps(commands), *sorted(heavy)],
        env={**os.environ, "ASSAY_HOME": str(home)},
        cwd=home,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return [json.loads(line) for line in responses.splitlines()]
