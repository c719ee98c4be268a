"""Back-tests test selection: whether the selected tests would have caught the recorded failures.

For each commit with results, the difference to its (first) parent selects tests, using the commit's own
files. Each recorded failure is then selected or missed. A test that also passed on the same commit, or failed
on the parent, is left out, because the commit did not break it.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from assay.records.ci_report import CiBackTest, MissedFailure
from assay.statistics.interval import normal_quantile, wilson_interval
from assay.triage.ci.flaky import bad_runs
from assay.triage.ci.recorded import CaseRun, FileRun
from assay.triage.ci.repository import Repository
from assay.triage.ci.select_tests import SelectedTests, select_tests

NO_COMMIT = "the commit of its run is not known"
NOT_HERE = "its commit is not in the repository"
NO_PARENT = "its commit has no parent in the repository"
NO_FILE = "its file is not in the commit"
FLAKED = "it passed on the same commit, too"
BROKEN_BEFORE = "it failed on the parent, too"
BAD_RUN = "its run is a bad one: many tests failed that pass in its commit's other runs"


class _Outcome(NamedTuple):
    """A test's results on one commit, over all runs and configurations."""

    case: CaseRun
    failures: int
    passes: int


def back_test(repository: Repository, files: Sequence[FileRun]) -> CiBackTest:
    """Check each recorded failure, counted once per test and commit."""
    left_out: Counter[str] = Counter()
    outcomes = _outcomes(repository, files, left_out)
    missed: list[MissedFailure] = []
    selected, shares = 0, []
    for commit, tests in outcomes.items():
        parent = repository.parent(commit)
        failed = list(_broken_by(tests, outcomes.get(parent or "", {}), left_out))
        if parent is None:
            left_out[NO_PARENT] += len(failed)
        elif failed:
            selection = select_tests(repository.tree_of(commit), repository.changed_between(parent, commit))
            shares.append(len(selection.tests) / max(1, len(selection.graph.tests)))
            for case in failed:
                file = file_of_test(case, selection)
                if file is None:
                    left_out[NO_FILE] += 1
                elif file in selection.tests:
                    selected += 1
                else:
                    missed.append(MissedFailure(commit=commit, test=case.test, file=file))
    failures = selected + len(missed)
    low, high = wilson_interval(selected / failures, failures, normal_quantile()) if failures else (None, None)
    return CiBackTest(
        failures=failures,
        selected=selected,
        low=low,
        high=high,
        missed=tuple(missed),
        commits=len(shares),
        selected_share=sum(shares) / len(shares) if shares else None,
        left_out=dict(left_out),
    )


def _outcomes(
    repository: Repository, files: Sequence[FileRun], left_out: Counter[str]
) -> dict[str, dict[str, _Outcome]]:
    """Return commit -> test -> outcome. Failures without a known commit are counted as left out."""
    found: dict[str, dict[str, _Outcome]] = defaultdict(dict)
    hashes = {name: repository.commit(name) for name in {file.origin.commit for file in files} - {""}}
    bad = bad_runs(files)
    for file in files:
        commit = hashes.get(file.origin.commit)
        why = BAD_RUN if file.file in bad else "" if commit else NOT_HERE if file.origin.commit else NO_COMMIT
        if why:
            left_out[why] += sum(case.failures > 0 for case in file.cases)
            continue
        of_commit = found[commit or ""]
        for case in file.cases:
            before = of_commit.get(case.test, _Outcome(case, 0, 0))
            of_commit[case.test] = _Outcome(case, before.failures + case.failures, before.passes + case.passes)
    return found


def _broken_by(
    tests: Mapping[str, _Outcome], before: Mapping[str, _Outcome], left_out: Counter[str]
) -> Iterator[CaseRun]:
    """Yield the tests that this commit broke, as far as the records show."""
    for test, outcome in tests.items():
        if not outcome.failures:
            continue
        if outcome.passes:
            left_out[FLAKED] += 1
        elif test in before and before[test].failures and not before[test].passes:
            left_out[BROKEN_BEFORE] += 1
        else:
            yield outcome.case


def file_of_test(case: CaseRun, selection: SelectedTests) -> str | None:
    """Return a test's file, by its file, class or name; None if the tree has no unique match."""
    class_name, _, name = case.test.partition("::")
    for candidate in (case.file, class_name, name.partition("::")[0]):
        for path in _paths_meant(candidate):
            found = _the_one(path, selection.graph.tests)
            if found:
                return found
    return None


def _paths_meant(text: str) -> Iterator[str]:
    """Yield candidate paths: `tests.unit.test_x.TestY` -> `tests/unit/test_x/TestY.py`,
    `tests/unit/test_x.py`, ..."""
    if text.endswith(".py"):
        yield text.replace("\\", "/").removeprefix("./")
        return
    parts = text.split(".")
    for end in range(len(parts), 0, -1):
        yield "/".join(parts[:end]) + ".py"


def _the_one(path: str, tests: Collection[str]) -> str | None:
    """Return the test file with this path, or the only one whose path ends with it, because pytest may run in
    a subfolder."""
    if path in tests:
        return path
    ending = [test for test in tests if test.endswith(f"/{path}")]
    return ending[0] if len(ending) == 1 else None
