"""Opens a campaign's sealed benchmark: once per candidate, when every other gate passes, and on record.

The opening is recorded before anything is scored, so a killed campaign continues with it, and nobody can look
first and then deny it. A holdout that an earlier campaign opened, or on which a run was scored before, is no
longer valid: later choices may depend on it.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from assay.base.clock import Clock
from assay.base.units import number_of
from assay.decision.config import SuiteBenchmark
from assay.decision.facts import Facts, HoldoutFacts, benchmark_facts
from assay.decision.gates import passes_except_holdout
from assay.evals.config import read_suite
from assay.evals.contents import suite_sha256
from assay.records.campaign import HoldoutOpening
from assay.records.decision import Source
from assay.records.run import Run
from assay.statistics.benchmark_items import load_result, result_folders
from assay.store.home import Home
from assay.store.ledger.ledger import Ledger
from assay.workflows.campaign.folder import OpenCampaign
from assay.workflows.campaign.scores import ScoredRun, benchmark_scores, suite_folder
from assay.workflows.campaign.suites import require_suites_as_declared
from assay.workflows.run import load_run

OPENINGS = "sealed"
"""Folder of a campaign's openings, `CANDIDATE.json` each."""


ScoreSealed = Callable[[OpenCampaign, SuiteBenchmark, Run, Ledger, Clock], Path]
"""Scores a run's last weights on the sealed benchmark, or finds the scores; returns the folder of the result."""


class LookContext(NamedTuple):
    """What a look needs besides the campaign."""

    ledger: Ledger
    clock: Clock
    score: ScoreSealed = suite_folder


def sealed_holdout_facts(
    campaign: OpenCampaign,
    facts: Facts,
    runs: Sequence[ScoredRun],
    context: LookContext,
) -> HoldoutFacts | None:
    """Return the facts of the sealed benchmark at this look; None while it stays closed."""
    benchmark = campaign.config.sealed_benchmark
    if benchmark is None:
        return None
    found = _opening(campaign.folder, facts.candidate)
    if found is None:
        if not (facts.look.is_gate and passes_except_holdout(campaign.config, facts)):
            return None
        if problem := _broken(campaign, benchmark, runs):
            return HoldoutFacts(None, problem, None)
        require_suites_as_declared(campaign.record, campaign.config)
        found = _open(campaign, benchmark, facts, context.clock)
    source = _source(campaign, found)
    if (found.num_seeds, True) != (facts.num_seeds, facts.look.is_gate):
        return HoldoutFacts(
            None,
            f"It was opened for the look at {number_of(found.num_seeds, 'seed')}, and can be opened only once.",
            source,
        )
    scored = [_with_sealed(run, benchmark, campaign, context) for run in runs]
    scores = benchmark_scores(benchmark.name, scored, campaign.home.folder.resolve())
    return HoldoutFacts(benchmark_facts(benchmark, "sealed", scores), "", source)


def openings(home: Home) -> Iterator[HoldoutOpening]:
    """Yield the openings of all campaigns."""
    for path in sorted(home.campaigns.glob(f"*/{OPENINGS}/*.json")):
        yield HoldoutOpening.from_json(path.read_bytes(), source=path)


def _broken(campaign: OpenCampaign, benchmark: SuiteBenchmark, runs: Sequence[ScoredRun]) -> str:
    """Return why the holdout is no longer valid; empty if it is."""
    sha256 = _suite_sha256(campaign, benchmark)
    known = [opening for opening in openings(campaign.home) if opening.suite_sha256 == sha256]
    for other in known:
        if other.campaign != campaign.config.name:
            return f"Campaign '{other.campaign}' opened it for {other.candidate}."
    opened_here = {run_id for opening in known for run_id in opening.runs}
    name = benchmark.benchmark or benchmark.name
    for run in runs:
        run_id = run.record.run_id
        folders = [] if run_id in opened_here else result_folders(campaign.home.run_dir(run_id))
        if any(load_result(folder).benchmark == name for folder in folders):
            return f"Run {run.record.run_id} was scored on it before it was opened."
    return ""


def _open(campaign: OpenCampaign, benchmark: SuiteBenchmark, facts: Facts, clock: Clock) -> HoldoutOpening:
    opening = HoldoutOpening(
        campaign=campaign.config.name,
        candidate=facts.candidate,
        benchmark=benchmark.name,
        suite_sha256=_suite_sha256(campaign, benchmark),
        num_seeds=facts.num_seeds,
        runs=tuple(run.run_id for run in facts.runs),
        opened_s=clock.now_s(),
    )
    campaign.store.put_if_absent(_key(facts.candidate), opening.to_json().encode())
    found = _opening(campaign.folder, facts.candidate)
    assert found is not None, "it was written above"
    return found


def _with_sealed(run: ScoredRun, benchmark: SuiteBenchmark, campaign: OpenCampaign, context: LookContext) -> ScoredRun:
    trained = load_run(campaign.home, run.record.run_id)
    folder = context.score(campaign, benchmark, trained, context.ledger, context.clock)
    return run._replace(folders={**run.folders, benchmark.name: folder})


def _suite_sha256(campaign: OpenCampaign, benchmark: SuiteBenchmark) -> str:
    assert benchmark.suite is not None, "a sealed benchmark names its suite"
    path = Path(campaign.record.base_dir) / benchmark.suite
    return suite_sha256(path, read_suite(path))


def _opening(folder: Path, candidate: str) -> HoldoutOpening | None:
    path = folder / _key(candidate)
    return HoldoutOpening.from_json(path.read_bytes(), source=path) if path.is_file() else None


def _source(campaign: OpenCampaign, opening: HoldoutOpening) -> Source:
    path = campaign.folder / _key(opening.candidate)
    return Source(path=path.relative_to(campaign.home.folder.resolve()).as_posix(), sha256=opening.digest())


def _key(candidate: str) -> str:
    return f"{OPENINGS}/{candidate}.json"
