"""One number for one fact: JSON, terminal, HTML and Markdown of one record show the same numbers.

Every number of a document is formatted where it is built. A renderer may leave a block out; it may neither change a
number nor add one of its own. The formatted values are those of the view.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from html.parser import HTMLParser
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.base.units import percent_text
from assay.base.versioned import Versioned
from assay.planning.actuals import Spend
from assay.planning.program.offer import Safety
from assay.records.ci_report import CiChanged, CiReport
from assay.records.commit_bisection import CommitBisection
from assay.records.data_changes import DataChanges
from assay.records.evaluation import Estimate
from assay.records.failure_causes import FailureDiagnosis
from assay.records.fix_check import FixCheck
from assay.records.goodput import Goodput, Interruption
from assay.records.guard import GuardStatus
from assay.records.hung_ranks import HungRanks
from assay.records.side_by_side import SideBySide
from assay.records.skew import Skew
from assay.records.slow_changes import SlowChanges
from assay.records.startup import Startup
from assay.records.statement import Statement
from assay.records.symptoms import Symptoms
from assay.reporting.document import (
    Code,
    Commands,
    Document,
    Fact,
    FactList,
    Fold,
    Listing,
    Mark,
    Paragraph,
    Section,
    TitledTable,
    Verdict,
    name,
    number,
)
from assay.reporting.documents.comparison import comparison_document
from assay.reporting.documents.goodput import goodput_document
from assay.reporting.documents.markdown import markdown
from assay.reporting.documents.memo import memo_document
from assay.reporting.documents.plan.plan_documents import execution_plan, raci, risk_register, stage_gates
from assay.reporting.documents.plan.status_documents import review, weekly_status
from assay.reporting.documents.render import render_document
from assay.reporting.documents.runs.run import run_document
from assay.reporting.documents.runs.run_diff import run_diff_document
from assay.reporting.documents.scaling import scaling_document
from assay.reporting.documents.triage import fleet_document, triage_document
from assay.reporting.terminal.document import print_document
from assay.reporting.views.forecast import forecast_view
from assay.reporting.views.runs.run_diff import DifferenceView, LossAtStepView, RunDiffView
from assay.reporting.views.runs.series import Series
from assay.reporting.views.scaling import scaling_view
from assay.statistics.scaling.forms import FORMS
from assay.statistics.scaling.points import scaling_points
from assay.statistics.scaling.study import ScalingStudy, study
from assay.store.home import Home
from assay.store.settings import HourPrice
from assay.triage.overview import Fleet, triage_ledger
from fleet_ledger import recorded_fleet
from running_program import offer_report, program_estimate

NUMBER = re.compile(r"(?<![\w.])[+-]?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?%?")


def numbers(text: str) -> Counter[str]:
    """The numbers in a text, as they are written."""
    return Counter(item.rstrip(",") for item in NUMBER.findall(text))


def texts(part: Any, *, pages: bool) -> Iterator[str]:
    """Every text of a document; without `pages`, those that a terminal shows."""
    if isinstance(part, str):
        yield part
    elif isinstance(part, dict) or part is None or isinstance(part, bool | int | float):
        return
    elif isinstance(part, tuple | list):
        for item in part:
            yield from texts(item, pages=pages)
    elif is_dataclass(part) and (pages or not getattr(part, "pages_only", False)):
        for field in fields(part):
            value = getattr(part, field.name)
            if field.name != "chart" and not callable(value):
                yield from texts(value, pages=pages)


def chart_texts(part: Any) -> Iterator[str]:
    """The values that a terminal writes at the ends of a curve: a form of the chart formats them."""
    if isinstance(part, tuple | list):
        for item in part:
            yield from chart_texts(item)
    elif is_dataclass(part):
        for field in fields(part):
            value = getattr(part, field.name)
            if field.name == "chart" and hasattr(value, "end_texts"):
                yield from (text for series in value.series for text in (value.end_texts(series) or ())[:2])
            elif field.name != "chart" and not callable(value):
                yield from chart_texts(value)


class Words(HTMLParser):
    """What a reader sees of a page without its drawings."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.seen, self._hidden = list[str](), 0
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._hidden += tag in ("svg", "style", "title")

    def handle_endtag(self, tag: str) -> None:
        self._hidden -= tag in ("svg", "style", "title")

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.seen.append(data)


def diff() -> RunDiffView:
    return RunDiffView(
        before="a", after="b", recipe=(DifferenceView(name="lr", before=0.25, after=1.5),), is_dataset_equal=True,
        dataset=None, environment=(), weights_equal=False, first_different_step=3,
        loss=(LossAtStepView(step=3, before=0.51234, after=0.4),),
        outcome=(DifferenceView(name="value", before=0.918, after=0.87612),),
    )  # fmt: skip


def goodput() -> Goodput:
    interruption = Interruption(
        run_id="r", attempt=1, at_s=1.0, reason="killed", failure=None, lost_device_s=50.0, stalled_device_s=1.0,
        startup_device_s=5.0, waited_device_s=20.0,
    )  # fmt: skip
    return Goodput(
        run_ids=("r",), held_device_s=265.0, by_phase={"compute": 200.0, "lost": 65.0}, interruptions=(interruption,),
        num_open_attempts=1, commit_s=0.02, failure_s=100.0, optimal_commit_s=2.0, step_s=0.5, cost=1.25,
        currency="EUR", num_commits=3,
    )  # fmt: skip


def of_rewards(run_page: Any) -> Any:
    steps = list(range(1, 41))
    curves = {
        name: Series(name, steps, [start + step / 100 for step in steps])
        for name, start in (("reward", 0.1), ("reward_exact", 0.2), ("length", 12.0), ("zero_std", 0.3), ("kl", 0.01))
    }
    held_out = Series("validation_reward", [0, 20, 40], [0.1, 0.3, 0.5])
    return replace(run_page, curves={**run_page.curves, **curves, "validation_reward": held_out})


PRICE = HourPrice("H100", 2.0, "EUR")


def plan_documents() -> dict[str, Callable[[], Document]]:
    report, running = offer_report(), program_estimate()
    offer, spends = report.offered.offer, [Spend("replicate", 270.0, 320.0, 3400.0)]
    return {
        "plan": lambda: execution_plan(report, PRICE),
        "gates": lambda: stage_gates(report),
        "raci": lambda: raci(report),
        "risks": lambda: risk_register(report, PRICE),
        "status": lambda: weekly_status(running, offer, spends, PRICE),
        "review": lambda: review(running, offer),
    }


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    home = Home.at(tmp_path_factory.mktemp("fleet"))
    recorded_fleet(
        home, num_runs=120, fails=lambda _, host: 0.7 if host == "n05" else 0.03, hosts=8,
        step_s=lambda run: 1.3 if run >= 60 else 1.0, version_of=lambda run: "b" if run >= 60 else "a",
    )  # fmt: skip
    with home.open_ledger() as ledger:
        return triage_ledger(ledger)


def scaling() -> ScalingStudy:
    tokens = np.geomspace(1e6, 1e9, 16)
    noise = np.random.default_rng(0).normal(0, 0.005, 16)
    points = scaling_points((0.5 + 30 * tokens**-0.2) * np.exp(noise), tokens=tokens)
    return study(points, FORMS["tokens"], targets=[{"tokens": 3e9}, {"tokens": 1e20}], num_resamples=50)


@pytest.fixture(params=["run", "rewards", "empty", "comparison", "memo", "diff", "goodput",
                        "plan", "gates", "raci", "risks", "status", "review", "fleet", "scaling"])  # fmt: skip
def document(
    request: pytest.FixtureRequest, run_page: Any, empty_page: Any, comparison_page: Any, memo_page: Any, fleet: Fleet
) -> Document:
    builders: dict[str, Callable[[], Document]] = {
        "run": lambda: run_document(run_page, now_s=0.0),
        "rewards": lambda: run_document(of_rewards(run_page), now_s=0.0),
        "empty": lambda: run_document(empty_page, now_s=0.0),
        "comparison": lambda: comparison_document(comparison_page),
        "memo": lambda: memo_document(memo_page),
        "diff": lambda: run_diff_document(diff()),
        "goodput": lambda: goodput_document(goodput(), {"r": goodput(), "s": goodput()}, of="run"),
        **plan_documents(),
        "fleet": lambda: fleet_document(fleet),
        "scaling": lambda: scaling_document(scaling(), None, name="runs.csv", created_s=0.0),
    }
    return builders[request.param]()


def shown(capsys: pytest.CaptureFixture[str], document: Document) -> str:
    print_document(document)
    return capsys.readouterr().out


def check_numbers(document: Document, capsys: pytest.CaptureFixture[str]) -> None:
    """No renderer changes a number or adds one."""
    whole = numbers("\n".join(texts(document, pages=True)))
    assert set(numbers(markdown(document).replace("\\", ""))) == set(whole)
    assert set(numbers("\n".join(Words(render_document(document)).seen))) == set(whole)
    brief = numbers("\n".join([*texts(document, pages=False), *chart_texts(document)]))
    screen = numbers(shown(capsys, document))
    assert set(screen) <= set(brief) | set(whole)


def test_no_renderer_changes_a_number_or_adds_one(document: Document, capsys: pytest.CaptureFixture[str]) -> None:
    check_numbers(document, capsys)
    assert numbers(shown(capsys, document)), "a screen without a number compares nothing"


BLOCKS = st.lists(st.floats(-1e6, 1e6, allow_nan=False), min_size=2, max_size=6)


@settings(max_examples=40, deadline=None)
@given(values=BLOCKS)
def test_whatever_the_numbers_are_all_renderers_write_them_alike(values: list[float]) -> None:
    first, *rest = (f"{value:,.4f}" for value in values)
    blocks = [
        Paragraph(f"it is {first}"),
        Listing([f"item {text}" for text in rest], "a list"),
        FactList([Fact("value", text, f"after {first}") for text in rest]),
        TitledTable.of("table", "", rest, (name("row"), str), (number("value"), lambda text: text)),
        Commands([("next", f"assay decide --by {first}")]),
        Fold("more", [Code(first)], is_open=True),
    ]
    verdict = Verdict("good", "pass", f"with {first}", (Mark("rows", "good", first),))
    document = Document(title="t", kind="k", verdict=verdict, sections=[Section("s", blocks)])
    expected = set(numbers("\n".join(texts(document, pages=True))))
    assert set(numbers(markdown(document).replace("\\", ""))) == expected
    assert set(numbers("\n".join(Words(render_document(document)).seen))) == expected


def test_the_numbers_of_a_run_are_those_of_its_json(run_page: Any, capsys: pytest.CaptureFixture[str]) -> None:
    view, screen = run_page.view, shown(capsys, run_document(run_page, now_s=0.0))
    headline: Estimate = view.evaluation.headline.estimate
    for text in (
        f"{headline.value:.4f}",
        f"[{headline.low:.4f}, {headline.high:.4f}]",
        f"{view.reached_step():,} of {view.total_steps:,}",
        f"{view.speed.steps_per_s:.3g} steps/s",
        view.weights_digest[:12],
    ):
        assert text in screen, text


def record(kind: Any, *, is_sparse: bool) -> st.SearchStrategy[Any]:
    """Records of a type with any numbers; sparse ones have no value that may be absent."""

    def of(part: Any) -> st.SearchStrategy[Any]:
        return record(part, is_sparse=is_sparse)

    origin, parts = get_origin(kind), get_args(kind)
    if origin is Literal:
        return st.sampled_from(parts)
    if origin in (Union, UnionType):
        return st.none() if is_sparse else of(next(part for part in parts if part is not type(None)))
    if origin is dict:
        return st.dictionaries(*map(of, parts), min_size=1, max_size=1)
    if origin is list or ... in parts:
        return st.lists(of(parts[0]), min_size=1, max_size=2).map(origin)
    if origin is tuple:
        return st.tuples(*map(of, parts))
    if isinstance(kind, type) and issubclass(kind, Versioned) and kind is not Statement:
        hints = get_type_hints(kind)
        values = {name: st.just(FIXED[name]) if name in FIXED else of(hints[name]) for name in kind.model_fields}
        return st.fixed_dictionaries(values).map(lambda fields: kind(**fields))
    return VALUES[kind]


FIXED: dict[str, Any] = {"kind": "distribution", "details": {}, "phase": None, "at": "1795000000.5"}
VALUES: dict[Any, st.SearchStrategy[Any]] = {
    float: st.floats(0.0001, 1e5).map(lambda value: round(value, 4)),
    int: st.integers(1, 10**7),
    bool: st.booleans(),
    str: st.sampled_from(["loss", "host", "n05", "commit"]),
    Statement: st.just(Statement(code="no value")),
}
TRIAGE = (
    FailureDiagnosis, FixCheck, Symptoms, HungRanks, SlowChanges, SideBySide, CommitBisection, Skew, Startup,
    DataChanges, CiReport, CiChanged, list[GuardStatus],
)  # fmt: skip


@pytest.mark.parametrize("kind", TRIAGE)
def test_whatever_triage_found_all_renderers_write_it_alike(kind: Any, capsys: pytest.CaptureFixture[str]) -> None:
    @settings(max_examples=15, deadline=None, database=None)
    @given(found=record(kind, is_sparse=False) | record(kind, is_sparse=True))
    def check(found: Any) -> None:
        check_numbers(triage_document(found), capsys)

    check()


def test_the_numbers_of_a_plan_a_status_a_fleet_and_a_law_are_those_of_their_json(fleet: Fleet) -> None:
    offer, estimate, law = offer_report().offered.offer, program_estimate(), scaling()
    documents = plan_documents()
    status, overview = forecast_view(estimate, PRICE), fleet.overview
    loss = scaling_view(law, None, None).predictions[0].prediction.loss
    for document, texts_of in (
        (documents["plan"](), _safety_texts(offer.safety)),
        (documents["risks"](), _safety_texts(offer.safety)[:2]),
        (documents["status"](), [*_safety_texts(status.forecast), f"{status.spent_device_hours:,.4g}"]),
        (fleet_document(fleet), [f"{overview.failures:,} of {overview.attempts:,}",
                                 percent_text(overview.failures / overview.attempts)]),
        (scaling_document(law, None, name="r", created_s=0.0), [f"{loss.value:.4f}", f"{loss.low:.4f}"]),
    ):  # fmt: skip
        for form in (markdown(document), " ".join(Words(render_document(document)).seen)):
            for text in texts_of:
                assert text in form, (document.title, text)


def _safety_texts(safety: Safety) -> list[str]:
    shares = (safety.p_on_time, safety.p_over_budget, *safety.verdicts.values())
    return [*map(safety.probability_text, shares), f"{safety.device_hours.p50:,.0f} device-hours"]
