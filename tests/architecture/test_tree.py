"""The tree is the first document: these hold whatever is added to it."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from import_graph import nodes, syntax

SRC = Path(__file__).parents[2] / "src" / "assay"
MODULES = sorted(SRC.rglob("*.py"))
MAX_LINES = 70


INITS = [path for path in MODULES if path.name == "__init__.py" and path.parent != SRC]
"""Without the package's own, which names the public API."""


@pytest.mark.parametrize("path", INITS, ids=lambda path: path.parent.name)
def test_an_init_holds_one_docstring_and_nothing_else(path: Path) -> None:
    body = syntax(path).body
    assert len(body) == 1
    assert isinstance(body[0], ast.Expr)


def test_no_module_is_a_drawer_for_odds_and_ends() -> None:
    assert not [path for path in MODULES if path.stem in ("utils", "util", "common", "helpers", "misc")]


def test_every_module_says_what_it_decides() -> None:
    assert not [path for path in MODULES if not ast.get_docstring(nodes(path)[0])]


def test_a_function_fits_on_a_screen() -> None:
    long = [
        f"{path.name}:{node.lineno} {node.name}"
        for path in MODULES
        for node in nodes(path)
        if isinstance(node, ast.FunctionDef) and (node.end_lineno or 0) - node.lineno + 1 > MAX_LINES
    ]
    assert not long


def test_imports_point_down_only() -> None:
    """The contracts of pyproject.toml, which a line of the tree and 'no torch here' are written as."""
    program = Path(sys.executable).with_name("lint-imports")
    checked = subprocess.run(
        [program, "--config", SRC.parents[1] / "pyproject.toml", "--no-cache"], capture_output=True, text=True
    )
    assert checked.returncode == 0, checked.stdout


READS_ENVIRONMENT = {
    "workflows/processes/foreground.py": "colours that Jupyter's kernel asks for",
    "base/json_log.py": "the format of log lines, for this process and those that it starts",
    "store/home.py": "where runs and the ledger lie, for those below",
    "store/objects.py": "the S3 client's own variables",
    "workflows/outer/pilot.py": "of the clusters that a pilot starts",
    "inference/endpoint.py": "the key of an endpoint",
    "scoring/python_graders.py": "what the operator says of graders",
    "cli/parameters.py": "likewise, for processes that a command starts",
    "training/methods/grpo/reward_config.py": "where judges answer, which may change while a run lives",
    "distributed/ranks.py": "gloo's interface",
    "distributed/rank_device.py": "in which memory cuBLAS adds",
    "data/pools/processes.py": "what the tokenizer forks with",
    "data/pools/remote.py": "likewise, on a worker",
    "data/pools/spark.py": "the executors' Python, and Java",
    "data/pools/ray.py": "the address of the cluster",
    "cli/main.py": "that pydantic looks for no plugins",
    "cli/train/group.py": "the job that srun tells of",
    "cli/train/join.py": "likewise",
    "elastic/nodes/node.py": "the port of the leader",
    "elastic/detached.py": "what a process is started with",
    "launchers/local.py": "what a process is started with",
    "workflows/campaign/elsewhere.py": "what a command is started with",
    "launchers/kubernetes/client.py": "the kubeconfig, and the API server that a pod is told of",
    "launchers/ray/driver.py": "likewise",
    "launchers/ray/client.py": "the address of the cluster, and the ledger of each machine",
    "workflows/ab_test/short_run.py": "likewise",
    "workflows/evaluation/background.py": "likewise",
    "elastic/processes.py": "likewise",
    "elastic/rank.py": "likewise",
    "elastic/processor.py": "limits of instruction sets, and which GPUs are visible",
    "elastic/environment.py": "the scheduler's job and the container's image",
    "workflows/processes/replay.py": "what a process is started with",
    "workflows/run.py": "the compiler of torch.compile",
    "checks/resume/attempt.py": "what a process is started with",
    "checks/resume/observer/sitecustomize.py": "what to observe, and the rank that torchrun tells of",
    "integrations/recorded_run.py": "the name that a campaign gives a run, and how many ranks of torchrun are here",
    "integrations/recording.py": "the rank that torchrun tells of",
    "trackers/sink.py": "what MLflow needs to take a folder",
    "torch.py": "the rank that torchrun tells of",
}
"""Module -> what of the environment is its business."""
STARTS_A_PROCESS = {
    "elastic/rank_setup.py",
    "integrations/recording.py",
    "training/checkpoint/named_commit.py",
    "scoring/python_graders.py",
}
"""Beside the commands, who may ask the environment for the home: a rank; a training script that is recorded; a recipe
that names another run; who starts a grader's process, for the home's word on it."""


def test_the_environment_is_read_in_few_places() -> None:
    reads = {
        path.relative_to(SRC).as_posix()
        for path in MODULES
        for node in nodes(path)
        if isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv")
    }
    assert reads == set(READS_ENVIRONMENT)


def test_a_home_is_made_at_the_edge_and_passed_down() -> None:
    makers = {
        path.relative_to(SRC).as_posix()
        for path in MODULES
        for node in nodes(path)
        if isinstance(node, ast.Attribute)
        and node.attr == "from_environment"
        and isinstance(node.value, ast.Name)
        and node.value.id == "Home"
    }
    assert {maker for maker in makers if not maker.startswith("cli/")} == STARTS_A_PROCESS


def test_a_folder_holds_about_twenty_modules_at_most() -> None:
    """Those that hold more have their reason in docs/architecture.md."""
    reasoned = {"records", "cli"}
    sizes = {
        folder.relative_to(SRC).as_posix(): sum(path.name != "__init__.py" for path in folder.glob("*.py"))
        for folder in {path.parent for path in MODULES}
    }
    assert {folder for folder, count in sizes.items() if count > 20} <= reasoned
    page = (SRC.parents[1] / "docs" / "architecture.md").read_text()
    assert all(f"`{folder}/` " in page for folder in reasoned)


def test_a_command_prints_a_view_or_a_record_and_builds_no_json_of_its_own() -> None:
    """What a program reads is said by `reporting/views` and `records`, so that HTTP will say the same."""
    commands = [path for path in MODULES if path.is_relative_to(SRC / "cli")]
    assert len(commands) > 20
    imports = [
        (path.name, name.name)
        for path in commands
        for node in nodes(path)
        if isinstance(node, ast.Import)
        for name in node.names
    ]
    assert not [entry for entry in imports if entry[1] == "json"]


def test_a_docstring_says_what_a_thing_is_and_not_only_of_what() -> None:
    assert not [path for path in MODULES if re.search(r'^\s*"""Of ', path.read_text(), re.MULTILINE)]


def test_a_count_that_people_read_is_one_thing_or_several() -> None:
    """`1 rows` stood on pages: what may be one is written by `number_of`; `of 1 rows`, `12.3 k rows` may be."""
    read = [path for path in MODULES if path.is_relative_to(SRC / "reporting") or path.parent.name == "screens"]
    assert not [
        f"{path.relative_to(SRC)}:{count.lineno}: {words[:20]}"
        for path in read
        for node in nodes(path)
        if isinstance(node, ast.JoinedStr)
        for before, count, words in _counts_with_words(node)
        if re.match(r" (more )?(row|step|item|file|worker|run|seed|cluster|point|token|attempt)s\b(?!/)", words)
        and not re.search(r"\b(of|all|at)( the)? $", before)
    ]


def _counts_with_words(text: ast.JoinedStr) -> Iterator[tuple[str, ast.FormattedValue, str]]:
    """Each count of an f-string with what stands before and behind it."""
    parts = ["" if isinstance(value, ast.FormattedValue) else value.value for value in text.values]  # type: ignore[attr-defined]
    for location, item in enumerate(text.values[:-1]):
        if isinstance(item, ast.FormattedValue) and re.search(r"num_|len\(|:,'", ast.unparse(item)):
            is_cut = "count_text" in ast.unparse(item) or ":>" in ast.unparse(item)
            if not is_cut:
                yield parts[location - 1] if location else "", item, str(parts[location + 1])
