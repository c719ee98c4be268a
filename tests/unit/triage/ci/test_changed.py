"""`triage ci --changed` from the outside: planted imports in, the tests that a change reaches out."""

import json
from pathlib import Path

import numpy as np
import pytest

from assay.cli.main import main
from import_world import ImportWorld, commit_all, git, write_files

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
    return json.loads(out)


@pytest.mark.parametrize("seed", range(8))
def test_a_change_reaches_the_tests_that_a_chain_of_imports_leads_from(tmp_path, capsys, seed):
    density = (0.1, 0.12, 0.25, 0.5)[seed % 4]
    world = ImportWorld(seed, modules=12, tests=8, density=density, is_acyclic=bool(seed % 2))
    commit_all(tmp_path, world.files)
    rng = np.random.default_rng(seed)
    committed, edited = rng.choice(12, size=2, replace=False).tolist()
    of_tests = 12 + seed
    write_files(tmp_path, {world.paths[committed]: world.files[world.paths[committed]] + "value = 2\n"})
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "y")
    for item in (edited, of_tests):
        write_files(tmp_path, {world.paths[item]: world.files[world.paths[item]] + "value = 3\n"})
    found = changed_in(capsys, tmp_path / "src" / "pkg", "HEAD~1")
    assert found["files"] == sorted(world.paths[item] for item in (committed, edited, of_tests))
    assert found["tests"] == world.reached([committed, edited, of_tests])
    assert found["unreached_files"] == world.unused([committed, edited])
    assert (found["test_files"], found["since"]) == (8, git(tmp_path, "rev-parse", "HEAD~1"))
    assert changed_in(capsys, tmp_path, "HEAD")["tests"] == world.reached([edited, of_tests])


BASE = {
    "pyproject.toml": "",
    "README.md": "hello",
    "src/pkg/__init__.py": "",
    "src/pkg/a.py": "from . import b\n",
    "src/pkg/b.py": "",
    "src/pkg/alone.py": "",
    "tests/conftest.py": "",
    "tests/helper.py": "import tools.part",
    "tests/unit/conftest.py": "import pkg.alone\n",
    "tests/unit/test_a.py": "import pkg.a\n",
    "tests/other/test_helper.py": "from helper import x\n",
    "tests/packaged/__init__.py": "",
    "tests/packaged/near.py": "from pkg import b\n",
    "tests/packaged/test_near.py": "from . import near\n",
    "tools/part.py": "",
}
UNIT, HELPER, NEAR = ["tests/unit/test_a.py"], ["tests/other/test_helper.py"], ["tests/packaged/test_near.py"]
ALL = sorted(UNIT + HELPER + NEAR)


@pytest.mark.parametrize(
    ("change", "tests"),
    [
        ("src/pkg/b.py", NEAR + UNIT),
        ("src/pkg/__init__.py", NEAR + UNIT),
        ("src/pkg/alone.py", UNIT),  # by the folder's conftest.py
        ("tests/unit/conftest.py", UNIT),
        ("tests/conftest.py", ALL),
        ("pyproject.toml", ALL),
        ("uv.lock", ALL),
        ("tests/helper.py", HELPER),
        ("tools/part.py", HELPER),
        ("tests/other/test_helper.py", HELPER),
        ("tests/packaged/near.py", NEAR),
        ("src/pkg/unused.py", []),
        ("README.md", []),
    ],
)
def test_what_a_changed_file_reaches(tmp_path, capsys, change, tests):
    commit_all(tmp_path, BASE)
    write_files(tmp_path, {change: "x = 1\n"})
    found = changed_in(capsys, tmp_path, "HEAD")
    assert (found["files"], found["tests"]) == ([change], sorted(tests))
    assert found["selects_all"] == ([change] if change in ("pyproject.toml", "uv.lock") else [])
    assert found["unreached_files"] == ([change] if change == "src/pkg/unused.py" else [])
    assert found["unknown"] == ([change] if change == "README.md" else [])


def test_what_is_deleted_has_unknown_readers_and_what_is_new_is_no_secret(tmp_path, capsys):
    commit_all(tmp_path, {**BASE, ".gitignore": "ignored.py\n"})
    (tmp_path / "src/pkg/b.py").unlink()
    new = ["tests/unit/test_new.py", "tests/unit/test_ünï \n.py"]
    write_files(tmp_path, {**dict.fromkeys(new, ""), "ignored.py": ""})
    found = changed_in(capsys, tmp_path, "HEAD")
    assert found["files"] == sorted(["src/pkg/b.py", *new])
    assert (found["tests"], found["unknown"]) == (sorted(new), ["src/pkg/b.py"])


def test_nothing_of_a_repository_is_executed_and_its_packages_hide_no_others(tmp_path, capsys):
    spy = f"open({str(tmp_path / 'ran')!r}, 'w')\n"
    repo = tmp_path / "repo"
    files = {
        "assay/__init__.py": spy,
        "assay/base.py": spy,
        "conftest.py": spy,
        "test_a.py": f"import assay.base\n{spy}",
    }
    commit_all(repo, files)
    (tmp_path / "monitor").write_text(f"#!/bin/sh\ntouch {tmp_path / 'ran'}\n")
    (tmp_path / "monitor").chmod(0o755)
    git(repo, "config", "core.fsmonitor", str(tmp_path / "monitor"))
    write_files(repo, {"assay/base.py": f"{spy}x = 1\n"})
    (tmp_path / "ran").unlink(missing_ok=True)
    assert changed_in(capsys, repo, "HEAD")["tests"] == ["test_a.py"]
    assert not (tmp_path / "ran").exists()


def test_of_this_repository_a_part_of_the_tests_is_selected(capsys):
    if not (CHECKOUT / ".git").exists():
        pytest.skip("not in a checkout")
    from assay.triage.ci.changed import _closure, _inverted, _paths, _uses

    python = {
        path for path in _paths(CHECKOUT, "ls-files", "-z") if path.endswith(".py") and (CHECKOUT / path).is_file()
    }
    tests = {path for path in python if path.rpartition("/")[2].startswith("test_")}
    users = _inverted(_uses(CHECKOUT, python, tests))
    reached = tests & _closure({"src/assay/triage/ci/flaky.py"}, users)
    assert "tests/unit/triage/ci/test_ci.py" in reached and len(reached) < len(tests) / 4


def test_bad_questions_are_one_error(tmp_path, capsys, monkeypatch):
    commit_all(tmp_path / "repo", BASE)
    commit_all(tmp_path / "broken", {**BASE, "src/pkg/b.py": "def (:\n"})
    (tmp_path / "none").mkdir()
    (tmp_path / "x.xml").write_text("")
    bad = {
        ("--changed", "no-such", "--repo", tmp_path / "repo"): "no-such",
        ("--changed", "--all", "--repo", tmp_path / "repo"): "--all",
        ("--changed", "HEAD~9", "--repo", tmp_path / "repo"): "HEAD~9",
        ("--changed", "HEAD", "--repo", tmp_path / "none"): "none",
        ("--changed", "HEAD", "--repo", tmp_path / "nowhere"): "no such folder",
        ("--changed", "HEAD", "--repo", tmp_path / "broken"): "b.py",
        ("--changed", "HEAD", "--repo", tmp_path / "repo", "--shards", "2"): "--shards",
        ("--changed", "HEAD", tmp_path / "x.xml"): "either JUNIT files, or --changed",
        ("--repo", tmp_path / "repo", tmp_path / "x.xml"): "--changed",
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
    assert code == 0 and "they reach 2 of 4 test files" in out and "\x1b[2J" not in out
    assert "notes.txt" in out
