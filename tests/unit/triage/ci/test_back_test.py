"""The back-test of `triage ci --changed`: commits and failures are planted, the share selected comes out."""

import json
import subprocess
import sys

import numpy as np
import pytest
from scipy.stats import norm

from assay.cli.main import main
from import_world import ImportWorld, commit_all, git


def back_test_of(capsys, repo, *arguments):
    with pytest.raises(SystemExit) as ended:
        main(["triage", "ci", *map(str, arguments), "--changed", "HEAD", "--repo", str(repo), "--json"])
    out, talk = capsys.readouterr()
    assert ended.value.code == 0, talk
    return json.loads(out)["changed"]["back_test"]


def junit(file, commit, outcomes):
    """Results of one run: file of a test -> whether it failed."""
    cases = "".join(
        f'<testcase classname="{path.removesuffix(".py").replace("/", ".")}" name="test_it" time="1">'
        + ("<failure/>" if has_failed else "")
        + "</testcase>"
        for path, has_failed in outcomes.items()
    )
    own = f'<properties><property name="commit" value="{commit}"/></properties>' if commit else ""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"<testsuite>{own}{cases}</testsuite>")


def wilson(hits, count):
    """The rates of which as few or as many hits are just not too surprising: roots of a quadratic."""
    z2 = norm.ppf(0.975) ** 2
    share = hits / count
    return sorted(np.roots([1 + z2 / count, -(2 * share + z2 / count), share**2]).real)


@pytest.mark.parametrize("seed", range(2))
def test_planted_failures_are_selected_where_a_chain_leads_and_else_listed(tmp_path, capsys, seed):
    rng = np.random.default_rng(seed)
    world = ImportWorld(seed, modules=10, tests=6, density=0.3, is_acyclic=True)
    tests, repo = world.paths[10:], tmp_path / "repo"
    commit_all(repo, world.files)
    selected, missed, shares = 0, [], []
    for number in range(8):
        changed = int(rng.integers(10))
        world.files[world.paths[changed]] += f"value = {number}\n"
        commit = commit_all(repo, {world.paths[changed]: world.files[world.paths[changed]]})
        failing = tests[number % 6]
        junit(tmp_path / "results" / f"{number}-ok.xml", commit, dict.fromkeys(set(tests) - {failing}, False))
        if number % 2:  # all is well on every other commit
            continue
        for run, name in (("a", commit[:12]), ("b", commit)):  # one failure, in two runs
            junit(tmp_path / "results" / f"{number}-{run}.xml", name, {failing: True})
        selected += failing in world.reached([changed])
        missed += [(commit, failing)] * (failing not in world.reached([changed]))
        shares.append(len(world.reached([changed])) / 6)
    found = back_test_of(capsys, repo, tmp_path / "results")
    assert 0 < selected < 4
    assert (found["failures"], found["selected"], found["commits"]) == (4, selected, 4)
    assert [(item["commit"], item["file"]) for item in found["missed"]] == missed
    np.testing.assert_allclose([found["low"], found["high"]], wilson(selected, 4), atol=1e-6)
    assert found["selected_share"] == pytest.approx(np.mean(shares)) and found["left_out"] == {}


def test_what_the_commits_change_did_not_break_is_left_out_with_its_reason(tmp_path, capsys):
    repo, results = tmp_path / "repo", tmp_path / "results"
    files = {"a.py": "", "test_a.py": "import a", "test_b.py": ""}
    root = commit_all(repo, files)
    first = commit_all(repo, {"a.py": "x = 1"})
    second = commit_all(repo, {"a.py": "x = 2"})
    junit(results / "root.xml", root, {"test_b.py": True})
    junit(results / "first.xml", first, {"test_a.py": True, "test_gone.py": True})
    junit(results / "second.xml", second, {"test_a.py": True, "test_b.py": True})
    junit(results / "second-again.xml", second, {"test_b.py": False})
    junit(results / "elsewhere.xml", "0123456789" * 4, {"test_a.py": True})
    junit(results / "unknown.xml", "", {"test_a.py": True})
    found = back_test_of(capsys, repo, results, "--path", "*.xml")
    assert (found["failures"], found["selected"], found["missed"]) == (1, 1, [])
    assert found["left_out"] == {
        "its commit has no parent in the repository": 1,
        "its file is not in the commit": 1,
        "it failed on the parent, too": 1,
        "it passed on the same commit, too": 1,
        "its commit is not in the repository": 1,
        "the commit of its run is not known": 1,
    }


def test_the_commits_own_files_are_asked_and_not_todays(tmp_path, capsys):
    repo = tmp_path / "repo"
    commit_all(repo, {"a.py": "", "b.py": "", "test_x.py": "import a"})
    then = commit_all(repo, {"a.py": "x = 1"})
    commit_all(repo, {"test_x.py": "import b"})
    junit(tmp_path / "then.xml", then, {"test_x.py": True})
    assert back_test_of(capsys, repo, tmp_path / "then.xml")["selected"] == 1


@pytest.mark.parametrize("commit", ["c" * 200_000, "--all", "a\\nb", "\\u0000"])
def test_a_commit_that_is_no_name_is_not_in_the_repository(tmp_path, capsys, commit):
    commit_all(tmp_path / "repo", {"test_x.py": ""})
    job = f'{{"name": "unit", "conclusion": "failure", "head_sha": "{commit}"}}'
    (tmp_path / "jobs.json").write_text(f'{{"jobs": [{job}]}}')
    found = back_test_of(capsys, tmp_path / "repo", tmp_path / "jobs.json")
    assert found["left_out"] == {"its commit is not in the repository": 1}


def test_without_failures_there_is_no_share(tmp_path, capsys):
    commit = commit_all(tmp_path / "repo", {"test_x.py": ""})
    junit(tmp_path / "x.xml", commit, {"test_x.py": False})
    found = back_test_of(capsys, tmp_path / "repo", tmp_path / "x.xml")
    assert (found["failures"], found["low"], found["high"], found["selected_share"]) == (0, None, None, None)


SUITE = {
    "pyproject.toml": "[tool.pytest.ini_options]\npythonpath = ['src']\n",
    "src/pkg/__init__.py": "",
    "src/pkg/part.py": "def two(): return 2\n",
    "tests/unit/test_part.py": "from pkg.part import two\nclass TestTwo:\n    def test_it(self): assert two() == 2\n",
    "tests/unit/test_import.py": "from pkg.part import two\ndef test_it(): pass\n",
    "tests/unit/test_apart.py": "import os\ndef test_it(): assert 'BROKEN' not in os.environ\n",
}


@pytest.mark.slow
@pytest.mark.parametrize("family", ["xunit1", "xunit2"])
def test_pytests_own_results_are_understood_classes_and_failed_imports_too(tmp_path, capsys, family, monkeypatch):
    commit_all(tmp_path, SUITE)
    commit = commit_all(tmp_path, {"src/pkg/part.py": "def two(): return 3\n"})
    monkeypatch.setenv("BROKEN", "1")
    arguments = ["--junit-xml=x.xml", "-p", "no:cacheprovider", "-o", f"junit_family={family}"]
    python = [sys.executable, "-m", "pytest"]
    subprocess.run([*python, *arguments], cwd=tmp_path, check=False, capture_output=True)
    found = back_test_of(capsys, tmp_path, tmp_path / "x.xml", "--commit", commit)
    assert (found["failures"], found["selected"]) == (2, 1)
    assert [item["file"] for item in found["missed"]] == ["tests/unit/test_apart.py"]
    broken = commit_all(tmp_path, {"src/pkg/part.py": ""})
    subprocess.run([*python, *arguments], cwd=tmp_path / "tests", check=False, capture_output=True)
    found = back_test_of(capsys, tmp_path, tmp_path / "tests" / "x.xml", "--commit", broken)
    assert (found["failures"], found["selected"]) == (2, 2)


def test_the_screen_shows_the_share_and_what_was_missed(tmp_path, capsys):
    repo = tmp_path / "repo"
    commit_all(repo, {"a.py": "", "test_a.py": "import a", "test_b.py": ""})
    commit = commit_all(repo, {"a.py": "x = 1"})
    junit(tmp_path / "x.xml", commit, {"test_a.py": True, "test_b.py": True})
    with pytest.raises(SystemExit):
        main(["triage", "ci", str(tmp_path / "x.xml"), "--changed", "HEAD", "--repo", str(repo)])
    out, _ = capsys.readouterr()
    assert "selects 1 of 2 failures on record (50.0%, 95% 9.5% to 90.5%) on 1 commit" in out
    assert f"{commit[:10]} test_b::test_it" in out
    assert git(repo, "status", "--porcelain") == ""
