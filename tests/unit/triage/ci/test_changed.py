"""`triage ci --changed` from the outside: planted imports in, the tests that a change reaches out."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.cli.main import main
from assay.triage.ci.import_graph import ImportGraph
from assay.triage.ci.python_source import PythonSource
from assay.triage.ci.repository import SourceTree
from assay.triage.ci.select_tests import select_tests
from import_world import ImportWorld, commit_all, git, write_files
from variants import slow

CHECKOUT = Path(__file__).parents[4]


def output_of(capsys, *arguments):
    try:
        main(["triage", "ci", *(str(argument) for argument in arguments)])
    except SystemExit as ended:
        return ended.code, *capsys.readouterr()
    raise AssertionError


def changed_in(capsys, repo, rev, *arguments):
    code, out, talk = output_of(capsys, *arguments, "--changed", rev, "--repo", repo, "--json")
    assert code == 0, talk
    return json.loads(out)["changed"]


def tree_of(files: dict[str, str]) -> SourceTree:
    python = {path: PythonSource(text.encode()) for path, text in files.items() if path.endswith(".py")}
    return SourceTree(frozenset(files), python, {})


@given(
    seed=st.integers(0, 2**32),
    modules=st.integers(1, 9),
    tests=st.integers(1, 5),
    density=st.sampled_from([0.1, 0.25, 0.5]),
    is_acyclic=st.booleans(),
    data=st.data(),
)
@settings(max_examples=150, deadline=None)
def test_a_change_reaches_the_tests_that_a_chain_of_imports_leads_from(seed, modules, tests, density, is_acyclic, data):
    world = ImportWorld(seed, modules=modules, tests=tests, density=density, is_acyclic=is_acyclic)
    changed = data.draw(st.lists(st.integers(0, modules + tests - 1), unique=True))
    selection = select_tests(tree_of(world.files), [world.paths[item] for item in changed])
    assert sorted(selection.tests) == world.reached(changed)
    assert sorted(selection.unreached) == world.unused(changed)


@pytest.mark.parametrize("seed", range(3))
def test_it_does_so_of_real_commits_and_of_what_is_not_committed_yet(tmp_path, capsys, seed):
    world = ImportWorld(seed, modules=12, tests=8, density=0.12, is_acyclic=bool(seed % 2))
    commit_all(tmp_path, world.files)
    rng = np.random.default_rng(seed)
    committed, edited = rng.choice(12, size=2, replace=False).tolist()
    write_files(tmp_path, {world.paths[committed]: world.files[world.paths[committed]] + "value = 2\n"})
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "y")
    write_files(tmp_path, {world.paths[edited]: world.files[world.paths[edited]] + "value = 3\n"})
    found = changed_in(capsys, tmp_path / "src" / "pkg", "HEAD~1")
    assert found["files"] == sorted([world.paths[committed], world.paths[edited]])
    assert found["tests"] == world.reached([committed, edited])
    assert found["unreached_files"] == world.unused([committed, edited])
    assert (found["test_files"], found["since"]) == (8, git(tmp_path, "rev-parse", "HEAD~1"))
    only_edited = changed_in(capsys, tmp_path, "HEAD")
    assert only_edited["tests"] == world.reached([edited]) and only_edited["back_test"] is None


BASE = {
    "pyproject.toml": "",
    "README.md": "hello",
    "src/pkg/__init__.py": "",
    "src/pkg/a.py": "from . import b\n",
    "src/pkg/b.py": "TABLE = __file__ + '/../data/table.csv'\n",
    "src/pkg/data/table.csv": "1",
    "src/pkg/alone.py": "",
    "tests/conftest.py": "",
    "tests/helper.py": "",
    "tests/unit/conftest.py": "import pkg.alone\n",
    "tests/unit/test_a.py": "import pkg.a\n",
    "tests/unit/golden/x.json": "1",
    "tests/other/test_helper.py": "from helper import x\n",
    "tests/other/test_script.py": "import subprocess\nsubprocess.run(['python', 'tools/run.py'])\n",
    "tests/other/test_built.py": "import pkg.built.part\n",  # not in the repository
    "tests/other/test_module.py": "import subprocess\nsubprocess.run(['python', '-m', 'pkg'])\n",
    "src/pkg/__main__.py": "import importlib\nimportlib.import_module(f'pkg.plugins.{1}.method')\n",
    "src/pkg/plugins/one/method.py": "",
    "src/pkg/plugins/one/other.py": "",
    "tools/run.py": "import tool_part\n",
    "tools/tool_part.py": "",
    ".github/workflows/x.yml": "1",
}
UNIT, HELPER = ["tests/unit/test_a.py"], ["tests/other/test_helper.py"]
BUILT = ["tests/other/test_built.py"]
SCRIPT, MODULE = ["tests/other/test_script.py"], ["tests/other/test_module.py"]
ALL = sorted(UNIT + HELPER + BUILT + SCRIPT + MODULE)


@pytest.mark.parametrize(
    ("change", "tests"),
    [
        ("src/pkg/b.py", UNIT),
        ("src/pkg/__init__.py", UNIT + BUILT + MODULE),
        ("src/pkg/alone.py", UNIT),  # by the folder's conftest.py
        ("tests/unit/conftest.py", UNIT),
        ("tests/conftest.py", ALL),
        ("pyproject.toml", ALL),
        ("uv.lock", ALL),
        ("tests/helper.py", HELPER),
        ("tests/other/test_helper.py", HELPER),
        ("src/pkg/data/table.csv", UNIT),
        ("tools/tool_part.py", SCRIPT),
        ("src/pkg/plugins/one/method.py", MODULE),
        ("src/pkg/plugins/one/other.py", []),
    ],
)
def test_what_a_changed_file_reaches(change, tests):
    files = {**BASE, change: "x = 1"} if change.endswith(".lock") else BASE
    selection = select_tests(tree_of(files), [change])
    assert sorted(selection.tests) == sorted(tests)
    assert list(selection.unreached) == ([] if tests else [change]) and not selection.unknown
    assert list(selection.selects_all) == ([change] if change in ("pyproject.toml", "uv.lock") else [])


def test_of_a_file_that_nothing_names_it_says_that_its_readers_are_not_known():
    nearest = select_tests(tree_of(BASE), ["tests/unit/golden/x.json"])
    assert sorted(nearest.tests) == UNIT and "1 test file in tests/unit" in nearest.unknown["tests/unit/golden/x.json"]
    lists = {**BASE, "docs/a.md": "", "tests/other/test_docs.py": "import os\nos.listdir('docs')\n"}
    listed = select_tests(tree_of(lists), ["docs/a.md"])
    assert sorted(listed.tests) == ["tests/other/test_docs.py"] and "name of its folder" in listed.unknown["docs/a.md"]
    far = select_tests(tree_of(BASE), ["README.md", ".github/workflows/x.yml"])
    assert not far.tests and not far.unreached and far.unknown.keys() == {"README.md", ".github/workflows/x.yml"}


def test_a_file_that_does_not_parse_reaches_all_that_import_it_and_is_named():
    broken = {
        **BASE,
        "src/pkg/b.py": "def (:\n",
        "tests/other/test_helper.py": "\0",
        "src/pkg/alone.py": "(" * 9_999,
    }
    selection = select_tests(tree_of(broken), ["tools/tool_part.py"])
    assert sorted(selection.tests) == sorted(UNIT + HELPER + SCRIPT)
    assert selection.unknown.keys() == {"src/pkg/b.py", "tests/other/test_helper.py", "src/pkg/alone.py"}
    assert "line 1" in selection.unknown["src/pkg/b.py"]
    assert not select_tests(tree_of(broken), []).tests


def test_what_is_deleted_reaches_who_still_imports_it_and_what_is_new_is_no_secret(tmp_path, capsys):
    commit_all(tmp_path, {**BASE, ".gitignore": "ignored.py\n"})
    (tmp_path / "src/pkg/b.py").unlink()
    (tmp_path / "tests/other/test_script.py").unlink()
    write_files(tmp_path, {"tests/unit/test_new.py": "", "ignored.py": "", "tests/unit/test_ünï \n.py": ""})
    found = changed_in(capsys, tmp_path, "HEAD")
    new = ["tests/unit/test_new.py", "tests/unit/test_ünï \n.py"]
    assert found["files"] == sorted(["src/pkg/b.py", "tests/other/test_script.py", *new])
    assert found["tests"] == sorted(UNIT + new)
    assert found["unreached_files"] == []


def test_pytests_own_settings_say_what_a_test_is_and_where_imports_begin(tmp_path, capsys):
    settings = '[tool.pytest.ini_options]\npython_files = "check_*.py"\npythonpath = ["kit"]\ntestpaths = ["checks"]\n'
    files = {
        "kit/tools/part.py": "",
        "checks/check_a.py": "import tools.part",
        "checks/test_b.py": "import tools.part",
    }
    commit_all(tmp_path, {"pyproject.toml": settings, **files, "kit/check_c.py": "import tools.part"})
    write_files(tmp_path, {"kit/tools/part.py": "x = 1"})
    found = changed_in(capsys, tmp_path, "HEAD")
    assert (found["tests"], found["test_files"]) == (["checks/check_a.py"], 1)


def test_nothing_of_a_repository_is_executed(tmp_path, capsys):
    spy = f"open({str(tmp_path / 'ran')!r}, 'w')\n"
    repo = tmp_path / "repo"
    commit_all(repo, {"a.py": spy, "conftest.py": spy, "test_a.py": f"import a\n{spy}"})
    (tmp_path / "monitor").write_text(f"#!/bin/sh\ntouch {tmp_path / 'ran'}\n")
    (tmp_path / "monitor").chmod(0o755)
    git(repo, "config", "core.fsmonitor", str(tmp_path / "monitor"))
    write_files(repo, {"a.py": f"{spy}x = 1\n"})
    (tmp_path / "ran").unlink(missing_ok=True)
    assert changed_in(capsys, repo, "HEAD")["tests"] == ["test_a.py"]
    assert not (tmp_path / "ran").exists()


@pytest.fixture(scope="module")
def own_tree():
    from assay.triage.ci.repository import opened_repository

    if not (CHECKOUT / ".git").exists():
        pytest.skip("not in a checkout")
    return opened_repository(CHECKOUT).working_tree()


@pytest.mark.slow
def test_this_repository_takes_seconds(own_tree):
    started_s = time.process_time()
    selection = select_tests(own_tree, ["src/assay/base/units.py"])
    assert time.process_time() - started_s < 15
    assert len(selection.tests) > 100 and len(selection.tests) < len(selection.graph.tests)
    assert "tests/unit/base/test_units.py" in selection.tests
    own = "tests/unit/triage/ci/test_changed.py"
    assert sorted(select_tests(own_tree, [own]).tests) == [own]


PLUGIN = """
import json, pathlib, sys
def pytest_sessionfinish():
    files = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    pathlib.Path(__file__).with_name("imported.json").write_text(json.dumps([each for each in files if each]))
"""


@pytest.mark.parametrize(
    "test",
    slow(
        "tests/unit/reporting/terminal/test_benchmarks.py",
        "tests/unit/training/methods/test_registry.py",
        "tests/unit/workflows/evaluation/test_queue.py",
        "tests/unit/planning/test_what_if.py",
    ),
)
def test_whatever_a_test_really_imports_is_in_the_graph(tmp_path, own_tree, test):
    (tmp_path / "imported_files.py").write_text(PLUGIN)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "imported_files", test]
    paths = [str(tmp_path), *filter(None, sys.path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    subprocess.run(command, cwd=CHECKOUT, env=environment, check=True, capture_output=True)
    imported = [Path(load) for load in json.loads((tmp_path / "imported.json").read_text())]
    own = {str(path.relative_to(CHECKOUT)) for path in imported if path.is_relative_to(CHECKOUT)}
    own &= own_tree.paths
    assert len(own) > 10 and own <= ImportGraph(own_tree).used_from([test])


def test_bad_questions_are_one_error(tmp_path, capsys, monkeypatch):
    commit_all(tmp_path / "repo", BASE)
    (tmp_path / "none").mkdir()
    bad = {
        ("--changed", "no-such", "--repo", tmp_path / "repo"): "no-such",
        ("--changed", "--all", "--repo", tmp_path / "repo"): "--all",
        ("--changed", "HEAD~9", "--repo", tmp_path / "repo"): "HEAD~9",
        ("--changed", "HEAD", "--repo", tmp_path / "none"): "none",
        ("--changed", "HEAD", "--repo", tmp_path / "nowhere"): "no such folder",
        ("--changed", "HEAD", "--repo", tmp_path / "repo", "--shards", "2"): "--shards",
        ("--repo", tmp_path / "repo"): "--changed",
        (): "--changed",
    }
    for arguments, word in bad.items():
        code, out, talk = output_of(capsys, *arguments)
        assert (code, out) == (2, "") and word in talk and "Traceback" not in talk, talk
    monkeypatch.setenv("PATH", str(tmp_path))
    code, out, talk = output_of(capsys, "--changed", "HEAD", "--repo", tmp_path / "repo")
    assert (code, out) == (2, "") and "git is not on the PATH" in talk


def test_the_screen_says_how_many_and_obeys_nothing_in_a_name(tmp_path, capsys):
    commit_all(tmp_path, BASE)
    write_files(tmp_path, {"src/pkg/a.py": "x = 1", "tests/test_\x1b[2J.py": "", "notes.txt": "1"})
    code, out, _ = output_of(capsys, "--changed", "HEAD", "--repo", tmp_path)
    assert code == 0 and "they reach 2 of 6 test files" in out and "\x1b[2J" not in out
    assert "notes.txt: no string names it" in out
