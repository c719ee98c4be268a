"""A real campaign on a tiny dataset: killed with SIGKILL in the midst, it goes on and trains nothing twice."""

import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from assay.base.clock import SystemClock
from assay.base.config import LoadedConfig
from assay.base.errors import ConfigError
from assay.cli.main import main
from assay.data.dataset.split import key_column, split_view
from assay.decision.config import SuiteBenchmark
from assay.records.campaign import CampaignRun
from assay.records.decision import Decision
from assay.reporting.views.statements import because_text
from assay.statistics.benchmark_items import load_result
from assay.store.commit_log import CommitLog
from assay.store.home import Home
from assay.store.objects import open_store
from assay.workflows.campaign.check import check_arms
from assay.workflows.campaign.evidence import Scoring, score_finished_runs, suite_folder
from assay.workflows.campaign.folder import OpenCampaign, find_campaign, load_campaign, newest_decisions
from assay.workflows.rebuild import rebuild_all
from assay.workflows.run import check_recipe

PROGRAM = "from assay.cli.main import main; main()"


@pytest.fixture
def campaign_file(tiny_recipe_tree: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path / "home"))
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(tiny_recipe_tree))
    loss = {"type": "classification", "name": "loss", "score": "log_loss"}
    (tmp_path / "suite.yaml").write_text(yaml.safe_dump({"name": "s", "benchmarks": [loss]}))
    tree = {
        "name": "tiny",
        "question": "Does a far higher learning rate help?",
        "recipe": "recipe.yaml",
        "candidates": [{"name": "faster", "patch": {"trainer.optimizer.learning_rate": 0.02}}],
        "seeds": 2,
        "budget_device_hours": 1,
        "benchmarks": [
            {"type": "predictions", "name": "likelihood", "score": "log_likelihood"},
            {"type": "predictions", "name": "english", "score": "correct", "where": {"language": "en"}},
            {"type": "suite", "name": "loss", "suite": "suite.yaml"},
        ],
        "rule": {"primary": ["likelihood"], "least_effect": 0.02},
    }
    path = tmp_path / "campaign.yaml"
    path.write_text(yaml.safe_dump(tree))
    return path


def _kill_once_committed(process: subprocess.Popen[bytes], home: Path, run_id: str) -> None:
    log = CommitLog(open_store(str(home / run_id)))
    deadline = time.monotonic() + 240
    while not log.commits():
        assert process.poll() is None, "the campaign ended before it could be killed"
        assert time.monotonic() < deadline, f"no commit of {run_id}"
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.fixture
def assay(capfd: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a command that succeeds in this process; return its output."""

    def run(*arguments: str) -> str:
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([*arguments])
        output = capfd.readouterr()
        assert not ended.value.code, output.err
        return output.out

    return run


@pytest.mark.slow
def test_a_killed_campaign_goes_on_and_trains_nothing_twice(
    campaign_file: Path, tmp_path: Path, assay: Callable[..., str]
) -> None:
    command = [sys.executable, "-c", PROGRAM, "decide", "run", str(campaign_file)]
    killed = subprocess.Popen(command, start_new_session=True, stderr=subprocess.DEVNULL)
    _kill_once_committed(killed, tmp_path / "home", "tiny-faster-s0")
    finished = assay("decide", "run", str(campaign_file))
    campaign = find_campaign(Home.from_environment(), "tiny")
    with Home.from_environment().open_ledger() as ledger:
        scoring = Scoring(ledger, SystemClock())
        arms = [score_finished_runs(campaign, arm, scoring) for arm in ("baseline", "faster")]
        records = [run.record for arm in arms for run in arm]
        attempts = {record.run_id: len(ledger.attempts(record.run_id)) for record in records}
        of_the_killed = {second.attempt for second in ledger.phase_seconds("tiny-faster-s0")}
    assert attempts["tiny-baseline-s0"] == attempts["tiny-baseline-s1"] == attempts["tiny-faster-s1"] == 1
    assert attempts["tiny-faster-s0"] == 2
    assert of_the_killed == {0, 1, 2}, "the suite (0) and the killed attempt (1) are debited, too"
    assert {record.audit_verdict for record in records} == {"pass"}
    decision = newest_decisions(campaign.folder)["faster"]
    assert decision.spent_s == pytest.approx(sum(record.device_s for record in records))
    effects = {effect.benchmark: effect for effect in decision.effects}
    # One is scored from the run's predictions, the other by a suite, and less is better there.
    assert effects["loss"].by_seed == pytest.approx(effects["likelihood"].by_seed, abs=1e-5)
    assert effects["loss"].baseline_score > 0 > effects["likelihood"].baseline_score
    assert [item.benchmark for item in decision.secondary] == ["likelihood-correct", "likelihood-ranking"]
    assert decision.accuracy_benchmark == "likelihood-correct"
    assert because_text(decision) in " ".join(finished.split())
    _assert_the_ledger_lists_it_and_can_be_rebuilt(decision, assay)
    assert (campaign.folder / "memo.html").is_file() and (campaign.folder / "memo.md").is_file()
    _assert_the_cost_is_shown_if_a_price_is_set(decision, campaign_file, assay)
    _assert_a_holdout_is_scored_on_the_last_weights(campaign, tmp_path, records[0])
    _assert_recorded_noise_is_used_for_the_same_request_only(campaign_file, assay)
    output = assay("decide", "run", str(campaign_file), "--check", "--measure", "0")
    assert "at most 4 runs (4 on record already: what is finished is not trained again), " in output


def _assert_recorded_noise_is_used_for_the_same_request_only(campaign_file: Path, assay: Callable[..., str]) -> None:
    """The name of a benchmark says nothing: its rows, their clusters and their scores do."""

    def power(benchmark: str, *, name: str = "likelihood", score: str = "log_likelihood") -> str:
        request = f"benchmarks=[{{type: predictions, name: {name}, score: {score}{benchmark}}}]"
        arguments = ["name=again", request, f"rule.primary=[{name}]", "--check", "--measure", "0"]
        return assay("decide", "run", str(campaign_file), *arguments)

    output = power("")
    assert "power, by the noise that campaign 'tiny' measured on 2 seeds and " in output
    fresh = power("", name="right", score="correct")
    (counted,), (measured,) = re.findall(r"20% of (\d+) eff", fresh), re.findall(r"2 seeds and (\d+) ", output)
    assert counted == measured, "the same rows are as many independent ones, whoever counts"
    for other in (", where: {language: de}", ", cluster: null", ", cluster: language"):
        assert "power: unknown before the first look" in power(other), other


def _assert_the_ledger_lists_it_and_can_be_rebuilt(decision: Decision, assay: Callable[..., str]) -> None:
    path = Home.from_environment().folder / "ledger.db"
    for _ in range(2):
        with Home.from_environment().open_ledger() as ledger:
            assert [campaign.name for campaign in ledger.campaigns()] == ["tiny"]
            assert ledger.decisions("tiny")[-1] == decision
        path.unlink()
        with Home.from_environment().open_ledger() as ledger:
            rebuild_all(Home.from_environment(), ledger)
    listed = assay("decide", "list")
    assert "tiny" in listed and decision.recommendation in listed


def _assert_the_cost_is_shown_if_a_price_is_set(
    decision: Decision, campaign_file: Path, assay: Callable[..., str]
) -> None:
    home = Home.from_environment()
    assert "EUR" not in assay("decide", "show", "tiny")
    (home.folder / "settings.yaml").write_text("{currency: EUR, device_hour_prices: {cpu: 3600}}")
    cost = f"{decision.spent_s:.2f} EUR"  # above a tenth, however quick the machine: below it has four digits
    assert cost in assay("decide", "show", "tiny")
    assert cost in assay("decide", "run", str(campaign_file))
    folder = find_campaign(home, "tiny").folder
    for page in ("memo.html", "memo.md"):
        assert cost in (folder / page).read_text()


def _assert_a_holdout_is_scored_on_the_last_weights(
    campaign: OpenCampaign, tmp_path: Path, record: CampaignRun
) -> None:
    correct = {"type": "classification", "name": "correct"}
    (tmp_path / "holdout.yaml").write_text(yaml.safe_dump({"name": "h", "benchmarks": [correct]}))
    sealed = SuiteBenchmark(type="suite", name="fresh", benchmark="correct", suite="holdout.yaml")
    with Home.from_environment().open_ledger() as ledger:
        run = ledger.run(record.run_id)
        folders = {suite_folder(campaign, sealed, run, ledger, SystemClock()) for _ in range(2)}
    (folder,) = folders
    result = load_result(folder)
    assert (result.benchmark, result.weights_digest) == ("correct", record.weights_digest)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "candidates=[{name: a, patch: {trainer.optimiser.betas: 1}}]",
            "Perhaps you meant 'trainer.optimizer'",
        ),
        ("candidates=[{name: baseline, patch: {trainer.epochs: 2}}]", "give the candidate another name"),
        ("candidates=[{name: a, patch: {seed: 2}}]", "all arms are trained with the campaign"),
        ("rule.primary=[likelyhood]", "benchmark 'likelyhood' is named by the rule or a gate"),
        ("seeds=1", "cannot separate noise from effect"),
        ("looks=[3]", "not before the last one"),
        ("workers=9", "can be shared by 1 to 8 workers"),
        ("recipe=nowhere.yaml", "nowhere.yaml: no such file"),
        ("benchmarks=[{type: suite, name: likelihood, suite: no.yaml}]", "no.yaml: no such file"),
        ("benchmarks=[{type: suite, name: likelihood, suite: suite.yaml}]", "has no benchmark 'likelihood'"),
        ("candidates=[{name: a, patch: {trainer.epochs: 1}}]", "its patch changes nothing"),
        (
            "benchmarks=[{type: predictions, name: likelihood, score: log_likelyhood}]",
            "score: log_likelyhood is not a score of the predictions of arm 'baseline'. Use score: correct, ",
        ),
        ("candidates=[{name: a, patch: {data.split.validation_fraction: 0.3}}]", "another dataset or split"),
        (
            "candidates=[{name: a, patch: {trainer.optimizer.schedule.warmup_steps: 500}}]",
            "arm 'a': trainer.optimizer.schedule.warmup_steps=500, but the run has 20 steps",
        ),
        ("candidates=[{name: a, patch: {trainer.evaluate_every: 21}}]", "arm 'a': trainer.evaluate_every=21"),
        (
            "rule.primary=[likelihood,likelihood]",
            "rule.primary (override): names benchmark 'likelihood' twice",
        ),
        ("rule.safety=[{benchmark: likelihood, max_rate: 0.1}]", "needs score: correct"),
        (
            "benchmarks=[{type: predictions, name: likelihood, score: correct, cluster: languag}]",
            "benchmark 'likelihood', cluster: the rows that arm 'baseline' predicts have no column 'languag'; "
            "perhaps you meant 'language'",
        ),
        (
            "benchmarks=[{type: predictions, name: likelihood, score: correct, where: {key: x}}]",
            "where.key: the rows that arm 'baseline' predicts have no column 'key'. They have: row_id, label, ",
        ),
        (
            "candidates=[{name: a, patch: {method.categorical_columns: [], method.numeric_columns: [language]}}]",
            "method.numeric_columns: column 'language' has type string, and no numbers.",
        ),
        (
            "benchmarks=[{type: predictions, name: likelihood, score: correct, where: {label: 2}}]",
            "benchmark 'likelihood': no row has label '2'. There are: ",
        ),
        ("rule.least_efect=1", "Perhaps you meant 'rule.least_effect'"),
    ],
)
def test_a_campaign_that_can_not_work_is_refused_before_anything_starts(
    campaign_file: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], override: str, message: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["decide", "run", str(campaign_file), override])
    assert ended.value.code == 2
    assert message in capfd.readouterr().err
    assert not (tmp_path / "home" / "campaigns").exists()


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("rule.least_effect=2", "rule.least_effect=2: benchmark 'right' is a share"),
        ("rule.guardrails=[{benchmark: right, margin: 1}]", "rule.guardrails: margin=1: benchmark 'right'"),
        (
            "gates=[{name: harm, then: stop, conditions: [{type: harm, benchmark: right, margin: 3}]}]",
            "gate 'harm': margin=3: benchmark 'right' is a share between 0 and 1, and cannot change by "
            "that much. A point is 0.01; perhaps you meant 0.03.",
        ),
    ],
)
def test_a_share_cannot_change_by_more_than_one(
    campaign_file: Path, capfd: pytest.CaptureFixture[str], override: str, message: str
) -> None:
    shares = ("benchmarks=[{type: predictions, name: right, score: correct}]", "rule.primary=[right]")
    with pytest.raises(SystemExit) as ended:
        main(["decide", "run", str(campaign_file), *shares, override])
    assert ended.value.code == 2
    assert message in capfd.readouterr().err


def test_what_has_begun_goes_on_with_what_it_was_declared_with(campaign_file: Path, tmp_path: Path) -> None:
    """A campaign cannot be mended once it runs, so a check that came later must not end it."""
    items = {"type": "multiple_choice", "name": "choices", "items": "gone.jsonl"}
    (tmp_path / "choices.yaml").write_text(yaml.safe_dump({"name": "s", "benchmarks": [items]}))
    for declared in (
        ["benchmarks=[{type: predictions, name: likelihood, score: correct}]", "rule.least_effect=2"],
        ["benchmarks=[{type: suite, name: choices, suite: choices.yaml}]", "rule.primary=[choices]"],
    ):
        loaded = load_campaign(Home.from_environment(), campaign_file, tuple(declared))
        assert check_arms(loaded, is_declared=True) == 4
        with pytest.raises(ConfigError):
            check_arms(loaded, is_declared=False)


def test_a_suite_that_a_classifier_cannot_answer_is_refused_before_anything_starts(
    campaign_file: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "items.jsonl").write_text('{"prompt": "1 + 1 =", "answer": "2"}')
    grader = {"type": "string_check", "name": "g", "input": "{{ sample.output_text }}", "operation": "eq",
              "reference": "{{ item.answer }}"}  # fmt: skip
    sums = {"type": "generation", "name": "sums", "items": "items.jsonl", "grader": grader}
    (tmp_path / "sums.yaml").write_text(yaml.safe_dump({"name": "s", "benchmarks": [sums]}))
    request = ("benchmarks=[{type: suite, name: sums, suite: sums.yaml}]", "rule.primary=[sums]")
    message = "benchmark 'sums' is of type generation, but {} is of method 'classify', which answers only"
    with pytest.raises(SystemExit) as ended:
        main(["decide", "run", str(campaign_file), *request])
    assert (ended.value.code, message.format("arm 'baseline'") in capfd.readouterr().err) == (2, True)
    of_recipe = f"evaluation={{suite: {tmp_path / 'sums.yaml'}}}"
    with pytest.raises(SystemExit) as ended:
        main(["train", str(tmp_path / "recipe.yaml"), of_recipe])
    assert (ended.value.code, message.format("the recipe") in capfd.readouterr().err) == (2, True)
    assert not (tmp_path / "home").exists() or not list((tmp_path / "home").glob("*/run.json"))


@pytest.mark.slow
def test_a_budget_that_does_not_hold_the_first_run_is_refused_by_check(
    campaign_file: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    command = ["decide", "run", str(campaign_file), "--check", "--measure", "0.1"]
    with pytest.raises(SystemExit) as ended:
        main([*command, "budget_device_hours=0.000001"])
    assert ended.value.code == 2
    assert "does not fit the first run, which takes about" in capfd.readouterr().err
    with pytest.raises(SystemExit) as ended:
        main(command)
    assert not ended.value.code
    assert "cost: about" in capfd.readouterr().out
    assert not (tmp_path / "home" / "campaigns").exists()


@pytest.mark.slow
def test_items_that_may_share_their_luck_are_counted_as_the_groups_they_are(
    campaign_file: Path, tiny_recipe_tree: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    """Conversations of five rows each: the luck of a row is that of its conversation."""
    shares = "benchmarks=[{{type: predictions, name: right, score: correct{}}}]"
    rule = ("rule.primary=[right]", "rule.guardrails=[{benchmark: right, margin: 0.02}]")
    safety = "rule.safety=[{benchmark: right, max_rate: 0.001}]"

    def check(cluster: str) -> tuple[str, str]:
        with pytest.raises(SystemExit) as ended:
            main(
                ["decide", "run", str(campaign_file), shares.format(cluster), *rule, safety, "--check",
                 "--measure", "0"]
            )  # fmt: skip
        output = capfd.readouterr()
        assert not ended.value.code, output.err
        return output.out, output.err

    recipe, dataset = check_recipe(LoadedConfig(tiny_recipe_tree, {}))
    view = split_view(dataset, recipe.data.split, "validation")
    column = str(key_column(recipe.data.split))
    groups = [view.read(group, [column])[column].to_pylist() for group in np.flatnonzero(view.num_rows)]
    keys = Counter(key for group in groups for key in group)
    rows = keys.total()
    kish = int(rows**2 / sum(size**2 for size in keys.values()))
    assert kish < len(keys) + 1 and kish < rows / 3
    out, err = check("")
    uneven = " of unequal size" if kish < len(keys) else ""
    assert f"20% of {kish} effective clusters ({rows} items in {len(keys)} clusters{uneven})" in out
    assert f"guardrail right, margin 2 points, on {kish} effective clusters: " in out
    assert f"safety right, at most 0.1%: {kish} effective clusters without a failure show " in out
    assert "more than the dataset has (about " in err
    out, _ = check(", cluster: null")
    assert f"20% of {rows} independent items and" in out


def test_a_file_that_a_clause_will_ask_for_is_missed_before_anything_is_spent(
    campaign_file: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["decide", "run", str(campaign_file), "rule.drill=drill.json", "--check", "--measure", "0"])
    assert not ended.value.code
    assert "drill.json does not exist yet" in capfd.readouterr().err


def test_the_power_of_each_look_is_said_before_anything_runs(
    campaign_file: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    shares = (
        "benchmarks=[{type: predictions, name: right, score: correct, cluster: null}]",
        "rule.primary=[right]",
    )
    with pytest.raises(SystemExit) as ended:
        main(
            [
                "decide",
                "run",
                str(campaign_file),
                "seeds=6",
                "looks=[3]",
                *shares,
                "--check",
                "--measure",
                "0",
            ]
        )
    assert not ended.value.code
    output = capfd.readouterr()
    assert "power, assuming that two models differ on 20% of" in output.out
    for look in (3, 6):
        assert f"look at {look} seeds: scales a gain of " in output.out
    assert "warning: the look at 3 seeds cannot decide: of the candidates that are worth having it " in output.err
    assert "warning: the campaign lacks power: " in output.err and "The cheapest fix, for 50%: " in output.err
    assert not (tmp_path / "home" / "campaigns").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("over_seeds", "other"),
    [("mean", "without the best and the worst seed (over_seeds: trimmed):"), ("trimmed", "with every seed (")],
)
def test_the_power_of_the_mean_and_of_the_typical_seed_stand_beside_each_other(
    campaign_file: Path, capfd: pytest.CaptureFixture[str], over_seeds: str, other: str
) -> None:
    rows = "benchmarks=[{type: predictions, name: right, score: correct, cluster: null}]"
    rule = [
        rows,
        "rule.primary=[right]",
        "rule.guardrails=[]",
        "rule.safety=[]",
        "gates=[]",
        f"rule.over_seeds={over_seeds}",
    ]
    command = ["decide", "run", str(campaign_file), "seeds=8", "looks=[5]", *rule]
    with pytest.raises(SystemExit) as ended:
        main([*command, "--check", "--measure", "0"])
    assert not ended.value.code
    lines = capfd.readouterr().out.splitlines()
    (location,) = [location for location, line in enumerate(lines) if line.strip().startswith(other)]
    looks = [line.strip() for line in lines if line.strip().startswith("look at ")]
    assert [line.split(":")[0] for line in looks] == ["look at 5 seeds", "look at 8 seeds"] * 2
    assert lines[location + 1].strip() == looks[2]
    assert len(set(looks)) == 4, "they are not the same powers"


def test_what_a_guardrail_can_see_is_said_before_anything_runs(
    campaign_file: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A guardrail of few rows was found too small when all was trained, and nothing could have been scaled."""
    shares = "{type: predictions, name: right, score: correct, cluster: null}"

    def check(language: str) -> tuple[int, str, str]:
        where = f"where: {{language: {language}}}"
        english = f"{{type: predictions, name: english, score: correct, cluster: null, {where}}}"
        rule = ("rule.guardrails=[{benchmark: english, margin: 0.05}]", "rule.primary=[right]")
        safety = "rule.safety=[{benchmark: right, max_rate: 0.001}]"
        with pytest.raises(SystemExit) as ended:
            main(
                [
                    "decide",
                    "run",
                    str(campaign_file),
                    f"benchmarks=[{shares}, {english}]",
                    *rule,
                    safety,
                    "--check",
                    "--measure",
                    "0",
                ]
            )
        output = capfd.readouterr()
        return int(ended.value.code or 0), output.out, output.err

    code, out, err = check("en")
    assert code == 0, err
    assert "  guardrail english, margin 5 points, on " in out and "of candidates that do no harm" in out
    assert "  safety right, at most 0.1%: " in out
    assert "warning: guardrail 'english' lacks power: by the last look it would pass " in err
    assert "For 80%: a margin of " in err and "items instead of" in err
    assert (
        "warning: safety benchmark 'right' cannot pass: " in err
        and "It takes 2,995 items, more than the dataset has (about 700 " in err
    )
    code, _, err = check("fr")
    assert code == 2 and "benchmark 'english': no validation row has language: fr" in err
    assert not (tmp_path / "home" / "campaigns").exists()
