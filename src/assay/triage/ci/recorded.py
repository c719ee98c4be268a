"""Reads recorded test runs: JUnit XML, GitHub's jobs, or pytest-split's durations, recognized by content.

The commit, run and configuration of a file come from `--path`, then a property of the file, then its path. Matrix
builds test one commit in several configurations; what fails in one of them only is broken there, not flaky. So every
part of a path that is neither commit nor run counts as configuration.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

from assay.base.digest import sha256_of_bytes
from assay.base.errors import ConfigError, DataError
from assay.base.visible import written_out
from assay.triage.attempts.junit import ambiguous_names, has_run, junit_root, name_of_test, suite_of, suites_of
from assay.triage.attempts.moments import moments
from assay.triage.attempts.sources import GITHUB_FAILED, bytes_of, jobs_of, text_of, tree_of

RERUNS_THAT_FAILED = ("flakyFailure", "flakyError", "rerunFailure", "rerunError")
"""Surefire's elements for earlier tries of a test case."""
WORKER_PROPERTIES = ("worker", "worker_id", "xdist_worker")
PHASES = ("setup", "call", "teardown")
PARTS = ("commit", "run", "config")
COMMIT_PROPERTIES = {
    *("commit", "commitsha", "commitid", "commithash", "gitcommit", "gitcommitsha", "gitsha", "sha", "headsha"),
    *("githubsha", "cicommitsha", "revision", "gitrevision", "vcsrevision", "buildsourceversion", "circlesha1"),
}
"""Names under which CI systems store the commit, in lower case without punctuation."""
CONFIG_PROPERTIES = {"config", "configuration", "environment", "toxenv", "toxenvname", "job"}
RUN_PROPERTIES = {"run", "runid", "githubrunid", "cipipelineid", "buildid"}

_EDGE_BEFORE, _EDGE_AFTER = r"(?<![0-9A-Za-z])", r"(?![0-9A-Za-z])"
_COMMIT = re.compile(
    rf"(?:(?<=/)|^)commit(?:[-_=](?P<named>[0-9A-Za-z]+)|(?P<number>[0-9]+)){_EDGE_AFTER}"
    rf"|{_EDGE_BEFORE}(?P<hash>(?=[0-9]*[a-f])[0-9a-f]{{7,40}}|[0-9a-f]{{40}}){_EDGE_AFTER}"
)
# A bare number names a run only where it is all of a part's name, or follows a word for runs or results:
# `cuda-12` and `3.12` are configurations.
_RUN = re.compile(
    rf"(?:(?<=/)|^)[0-9]+(?=/|\.[A-Za-z]+$|$)"
    rf"|{_EDGE_BEFORE}(?:run|attempt|try|rerun|junit|results?|report|pytest|r)[-_=.]?[0-9]+(?!\.[0-9]){_EDGE_AFTER}"
    rf"|[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}(?:[T_ -][0-9][0-9.:_-]*Z?)?"
)


@dataclass(frozen=True, kw_only=True)
class CaseRun:
    """A test's result in one file."""

    test: str
    suite: str = ""
    seconds: float | None
    """None if the file has no time."""
    failures: int = 0
    passes: int = 0
    """Each try counts once; a skipped test has neither failures nor passes."""
    worker: str = ""
    phases: tuple[float | None, ...] = (None, None, None)
    """Seconds of set-up, call and tear-down."""


@dataclass(frozen=True, kw_only=True)
class FileRun:
    """The tests of one run, on one commit and configuration."""

    file: str
    commit: str
    """Empty if unknown, as is `run`."""
    run: str
    config: str
    """The rest of the path."""
    wall_s: float | None
    cases: tuple[CaseRun, ...]


def read_recorded(
    sources: Sequence[Path], *, commit: str | None, path: str | None
) -> tuple[list[FileRun], dict[str, str]]:
    """Read files, and the XML files of folders; also return each file's SHA-256. `commit` applies to all files;
    `path` tells how to parse their paths."""
    pattern = path_pattern(path) if path else None
    runs: list[FileRun] = []
    digests: dict[str, str] = {}
    for file in dict.fromkeys(file for source in sources for file in _files(source)):
        content = bytes_of(file)
        digests[str(file)] = sha256_of_bytes(content)
        runs.extend(_runs(file, content, pattern))
    ambiguous = {test for run in runs for test in ambiguous_names((case.test, case.suite) for case in run.cases)}
    runs = [replace(run, cases=tuple(_named(case, ambiguous) for case in run.cases)) for run in runs]
    if commit:
        runs = [replace(run, commit=commit) for run in runs]
    if not any(run.cases for run in runs):
        raise DataError(f"{', '.join(map(str, sources[:3]))}: no test is in it. Expected results of tests that ran.")
    return runs, digests


def _named(case: CaseRun, ambiguous: set[str]) -> CaseRun:
    return replace(case, test=f"{case.suite}::{case.test}") if case.test in ambiguous else case


def _files(source: Path) -> list[Path]:
    if not source.is_dir():
        return [source]
    files = sorted(file for file in source.rglob("*.xml") if file.is_file())
    if not files:
        raise ConfigError(f"{source}: no XML file lies in it. Name the files of results.")
    return files


def _runs(file: Path, content: bytes, pattern: re.Pattern[str] | None) -> Iterator[FileRun]:
    text = text_of(str(file), content, expected="JUnit XML")
    if text.lstrip()[:1] == "<":
        yield _junit_run(file, text, pattern)
        return
    try:
        tree = tree_of(text)
    except ValueError as error:
        raise DataError(
            f"{file}: neither XML nor JSON. Expected JUnit XML (pytest --junit-xml), GitHub's jobs, or the "
            "durations of pytest-split."
        ) from error
    if (jobs := jobs_of(tree)) is not None:
        yield from _job_runs(file, jobs)
    elif isinstance(tree, dict) and tree and all(isinstance(value, int | float) for value in tree.values()):
        cases = tuple(CaseRun(test=test, seconds=_seconds(value, file, test)) for test, value in tree.items())
        yield FileRun(file=str(file), **run_origin(file, {}, pattern), wall_s=None, cases=cases)
    else:
        raise DataError(f"{file}: JSON of no kind that is known here. Expected GitHub's jobs, or test -> seconds.")


def _junit_run(file: Path, text: str, pattern: re.Pattern[str] | None) -> FileRun:
    root = junit_root(str(file), text)
    suites = suites_of(root)
    properties = _properties(root)
    for suite in suites:
        properties = {**_properties(suite), **properties}
    separator = _decimal_separator(root)
    cases = tuple(_case(case, suite, file, separator) for suite in suites for case in suite.findall("testcase"))
    return FileRun(
        file=str(file), **run_origin(file, properties, pattern), wall_s=_wall_s(root, suites, file, separator),
        cases=cases,
    )  # fmt: skip


def _decimal_separator(root: Element) -> str:
    """Return "," if some time of the document can be read in no other way: `0,045`, `1,5`."""
    times = [element.get("time", "") for element in root.iter()]
    return (
        "," if any(re.fullmatch(r"0+,\d+|\d+,(?!\d{3}$)\d+|\d{1,3}(?:\.\d{3})+,\d+", time) for time in times) else "."
    )


def _wall_s(root: Element, suites: list[Element], file: Path, separator: str) -> float | None:
    """Return the document's time, or the sum of its suites' times."""
    own = _seconds(root.get("time"), file, "the document", separator)
    if own is not None or root.tag == "testsuite":
        return own
    # A suite inside another is in the other's time already.
    outer = [suite for suite in root.findall("testsuite") if suite in suites]
    times = [_seconds(suite.get("time"), file, "a suite", separator) for suite in outer]
    known = [time for time in times if time is not None]
    return sum(known) if known and len(known) == len(times) else None


def _case(case: Element, suite: Element, file: Path, separator: str) -> CaseRun:
    test, properties = name_of_test(case), _properties(case)
    has_failed = case.find("failure") is not None or case.find("error") is not None
    phases = tuple(_seconds(properties.get(f"{phase}_s"), file, test) for phase in PHASES)
    return CaseRun(
        test=test, suite=suite_of(case, suite), seconds=_seconds(case.get("time"), file, test, separator),
        failures=has_failed + sum(len(case.findall(name)) for name in RERUNS_THAT_FAILED),
        passes=int(not has_failed and has_run(case)),
        worker=next((properties[name] for name in WORKER_PROPERTIES if name in properties), ""), phases=phases,
    )  # fmt: skip


def _properties(element: Element) -> dict[str, str]:
    found = element.findall("properties/property")
    return {item.get("name", ""): item.get("value") or item.text or "" for item in found}


def _seconds(value: Any, file: Path, what: str, separator: str = ".") -> float | None:
    """Return a time. A comma is a thousands' mark before three digits, unless it is the separator of decimals."""
    if value is None or value == "":
        return None
    text = str(value)
    if separator == ",":
        text = text.replace(".", "").replace(",", ".") if "," in text else text
    elif re.fullmatch(r"[1-9]\d{0,2}(?:,\d{3})+(?:\.\d*)?", text):
        text = text.replace(",", "")
    try:
        seconds = float(text)
    except (ValueError, OverflowError):
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        shown = written_out(f"{what[:80]}: its time is {str(value)[:40]!r}")
        raise DataError(f"{file}, {shown}, which is no number of seconds.")
    return seconds


def _job_runs(file: Path, jobs: Sequence[Any]) -> Iterator[FileRun]:
    """Yield GitHub's jobs: each job is a test, each try of a workflow run is a run."""
    tries: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for job in jobs:
        if isinstance(job, dict) and job.get("conclusion") in GITHUB_FAILED | {"success"}:
            key = (str(job.get("head_sha") or ""), str(job.get("run_id") or ""), str(job.get("run_attempt") or ""))
            tries.setdefault(key, []).append(job)
    for (commit, run, attempt), members in tries.items():
        ends = [_job_times(file, job) for job in members]
        known = [times for times in ends if times is not None]
        yield FileRun(
            file=f"{file} (run {run or '?'}, try {attempt or '?'})", commit=commit,
            run=f"{run}.{attempt}" if run else "", config="",
            wall_s=max(end for _, end in known) - min(start for start, _ in known) if known else None,
            cases=tuple(_job_case(job, times) for job, times in zip(members, ends, strict=True)),
        )  # fmt: skip


def _job_case(job: Mapping[str, Any], times: tuple[float, float] | None) -> CaseRun:
    has_failed = job["conclusion"] in GITHUB_FAILED
    return CaseRun(
        test=str(job.get("name", "")), seconds=None if times is None else times[1] - times[0],
        failures=int(has_failed), passes=int(not has_failed),
    )  # fmt: skip


def _job_times(file: Path, job: Mapping[str, Any]) -> tuple[float, float] | None:
    texts = [job.get("started_at"), job.get("completed_at")]
    if not all(texts):
        return None
    start, end = moments([str(text) for text in texts], f"{file}: a job's started_at and completed_at")
    if end < start:
        raise DataError(f"{file}: a job is completed before it is started. Its clocks disagree.")
    return float(start), float(end)


def path_pattern(template: str) -> re.Pattern[str]:
    """Compile `{commit}/{config}/{run}.xml`, which matches the end of a path; `*` matches within one part."""
    pattern = ""
    for piece in re.split(r"(\{[^}]*\}|\*)", template):
        if piece == "*":
            pattern += "[^/]*"
        elif piece.startswith("{"):
            if piece[1:-1] not in PARTS or f"(?P<{piece[1:-1]}>" in pattern:
                raise ConfigError(f"--path {template}: expected {{commit}}, {{run}} and {{config}}, each once.")
            pattern += f"(?P<{piece[1:-1]}>[^/]+?)"
        else:
            pattern += re.escape(piece)
    return re.compile(rf"(?:^|/){pattern}$")


def run_origin(file: Path, properties: Mapping[str, str], pattern: re.Pattern[str] | None) -> dict[str, str]:
    """Return commit, run and config of a file: by `--path`, else by a property, else by the words of its path."""
    path = file.as_posix()
    named: dict[str, str] = {}
    if pattern is not None:
        found = pattern.search(path)
        if found is None:
            raise DataError(
                f"{file}: its path does not end as --path says. Correct the pattern, or leave the file out."
            )
        named = found.groupdict()
    plain = {re.sub("[^a-z0-9]", "", name.lower()): value.strip() for name, value in properties.items()}
    met = max(_COMMIT.finditer(path), key=lambda found: found.start(), default=None)
    of_path = (met["named"] or met["number"] or met["hash"]) if met else ""
    words = "" if pattern is not None else _RUN.sub("#", path.replace(met[0], "#") if met else path)
    return {
        "commit": named.get("commit") or _first(plain, COMMIT_PROPERTIES) or of_path,
        "run": named.get("run") or _first(plain, RUN_PROPERTIES),
        "config": named.get("config") or _first(plain, CONFIG_PROPERTIES) or words,
    }


def _first(properties: Mapping[str, str], names: set[str]) -> str:
    return next((value for name, value in properties.items() if name in names and value), "")
