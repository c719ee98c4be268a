"""A real campaign on a tiny dataset: killed with SIGKILL in the midst, it goes on and trains nothing twice."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from assay.base.clock import SystemClock
from assay.cli.main import main
from assay.evaluation.decision.config import SuiteBenchmark
from assay.evaluation.evidence.benchmark_items import load_result
from assay.launch.campaign.folder import OpenCampaign, find_campaign
from assay.launch.campaign.memo import newest_decisions
from assay.launch.campaign.scores import finished_runs, suite_folder
from assay.launch.rebuild import rebuild_all
from assay.records.campaign import CampaignRun
from assay.records.decision import Decision
from assay.store.commit_log import CommitLog
from assay.store.home import Home
from assay.store.objects import open_store

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
    deadline = time.monotonic() + 90
    while not log.commits():
        assert process.poll() is None, "the campaign ended before it could be killed"
        assert time.monotonic() < deadline, f"no commit of {run_id}"
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.mark.slow
def test_a_killed_campaign_goes_on_and_trains_nothing_twice(campaign_file: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, "campaign", "run", str(campaign_file)]
    killed = subprocess.Popen(command, start_new_session=True, stderr=subprocess.DEVNULL)
    _kill_once_committed(killed, tmp_path / "home", "tiny-faster-s0")
    finished = subprocess.run(command, capture_output=True, text=True, check=True)
    campaign = find_campaign(Home.from_environment(), "tiny")
    with Home.from_environment().open_ledger() as ledger:
        arms = [finished_runs(campaign, ledger, arm, clock=SystemClock()) for arm in ("baseline", "faster")]
        records = [run.record for arm in arms for run in arm]
        attempts = {record.run_id: len(ledger.attempts(record.run_id)) for record in records}
        of_the_killed = {each.attempt for each in ledger.phase_seconds("tiny-faster-s0")}
    assert attempts["tiny-baseline-s0"] == attempts["tiny-baseline-s1"] == attempts["tiny-faster-s1"] == 1
    assert attempts["tiny-faster-s0"] == 2
    assert of_the_killed == {0, 1, 2}, "the suite (0) and the killed attempt (1) are debited, too"
    assert {record.audit_verdict for record in records} == {"pass"}
    decision = newest_decisions(campaign)["faster"]
    assert decision.spent_s == pytest.approx(sum(record.device_s for record in records))
    effects = {effect.benchmark: effect for effect in decision.effects}
    # One is scored from the run's predictions, the other by a suite, and less is better there.
    assert effects["loss"].by_seed == pytest.approx(effects["likelihood"].by_seed, abs=1e-5)
    assert effects["loss"].baseline_score > 0 > effects["likelihood"].baseline_score
    assert decision.sentence in finished.stdout
    _assert_the_ledger_knows_and_can_be_made_anew(decision, command)
    assert (campaign.folder / "memo.html").is_file() and (campaign.folder / "memo.md").is_file()
    _assert_the_cost_is_said_where_a_price_is_set(decision, command)
    _assert_a_holdout_is_scored_on_the_last_weights(campaign, tmp_path, records[0])


def _assert_the_ledger_knows_and_can_be_made_anew(decision: Decision, command: list[str]) -> None:
    path = Home.from_environment().folder / "ledger.db"
    for _ in range(2):
        with Home.from_environment().open_ledger() as ledger:
            assert [each.name for each in ledger.campaigns()] == ["tiny"]
            assert ledger.decisions("tiny")[-1] == decision
        path.unlink()
        with Home.from_environment().open_ledger() as ledger:
            rebuild_all(Home.from_environment(), ledger)
    listed = subprocess.run(
        [*command[:3], "campaign", "list"], capture_output=True, text=True, check=True
    ).stdout
    assert "tiny" in listed and decision.recommendation in listed


def _assert_the_cost_is_said_where_a_price_is_set(decision: Decision, command: list[str]) -> None:
    home = Home.from_environment()

    def said(*arguments: str) -> str:
        done = subprocess.run(
            [*command[:3], "campaign", *arguments], capture_output=True, text=True, check=True
        )
        return done.stdout

    assert "cost so far" not in said("show", "tiny")
    (home.folder / "settings.yaml").write_text("{currency: EUR, device_hour_prices: {cpu: 36}}")
    cost = f"{decision.spent_s / 100:.2f} EUR"
    assert f"cost so far: {cost}" in said("show", "tiny")
    assert f"cost so far: {cost}" in said(*command[4:])
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
    ("override", "says"),
    [
        (
            "candidates=[{name: a, patch: {trainer.optimiser.betas: 1}}]",
            "Perhaps you meant 'trainer.optimizer'",
        ),
        ("candidates=[{name: baseline, patch: {trainer.epochs: 2}}]", "give the candidate another name"),
        ("candidates=[{name: a, patch: {seed: 2}}]", "a seed is no treatment"),
        ("rule.primary=[likelyhood]", "benchmark 'likelyhood' is asked for"),
        ("seeds=1", "cannot tell luck from effect"),
        ("looks=[3]", "not before the last one"),
        ("workers=3", "it is one of 1, 2, 4, 8"),
        ("recipe=nowhere.yaml", "nowhere.yaml: no such file"),
        ("benchmarks=[{type: suite, name: likelihood, suite: no.yaml}]", "no.yaml: no such file"),
        ("benchmarks=[{type: suite, name: likelihood, suite: suite.yaml}]", "has no benchmark 'likelihood'"),
        ("candidates=[{name: a, patch: {trainer.epochs: 1}}]", "its patch changes nothing"),
        (
            "benchmarks=[{type: predictions, name: likelihood, score: log_likelyhood}]",
            "score: log_likelyhood is not among the scores of rows of arm 'baseline'. Use score: correct, ",
        ),
        ("candidates=[{name: a, patch: {data.split.validation_fraction: 0.3}}]", "another dataset or split"),
        (
            "candidates=[{name: a, patch: {trainer.optimizer.schedule.warmup_steps: 500}}]",
            "arm 'a': trainer.optimizer.schedule.warmup_steps=500, but the run has 20 steps",
        ),
        ("candidates=[{name: a, patch: {trainer.evaluate_every: 21}}]", "arm 'a': trainer.evaluate_every=21"),
        ("rule.primary=[likelihood,likelihood]", "rule.primary names benchmark 'likelihood' twice"),
        ("rule.safety=[{benchmark: likelihood, max_rate: 0.1}]", "needs score: correct"),
        ("rule.least_efect=1", "Perhaps you meant 'rule.least_effect'"),
    ],
)
def test_a_campaign_that_can_not_work_is_refused_before_anything_starts(
    campaign_file: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], override: str, says: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["campaign", "run", str(campaign_file), override])
    assert ended.value.code == 2
    assert says in capfd.readouterr().err
    assert not (tmp_path / "home" / "campaigns").exists()


def test_a_file_that_a_clause_will_ask_for_is_missed_before_anything_is_spent(
    campaign_file: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["campaign", "run", str(campaign_file), "rule.drill=drill.json", "--check"])
    assert not ended.value.code
    assert "drill.json is not there yet" in capfd.readouterr().err


def test_the_power_of_each_look_is_said_before_anything_runs(
    campaign_file: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    shares = ("benchmarks=[{type: predictions, name: right, score: correct}]", "rule.primary=[right]")
    with pytest.raises(SystemExit) as ended:
        main(["campaign", "run", str(campaign_file), "seeds=6", "looks=[3]", *shares, "--check"])
    assert not ended.value.code
    said = capfd.readouterr()
    assert "power, assuming that two models differ on 20% of" in said.out
    for look in (3, 6):
        assert f"look at {look} seeds: finds a gain of " in said.out
    assert "warning: the campaign cannot answer: " in said.err and "The cheapest cure, for 50%: " in said.err
    assert not (tmp_path / "home" / "campaigns").exists()


def test_what_a_guardrail_can_see_is_said_before_anything_runs(
    campaign_file: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A guardrail of few rows was found too small when all was trained, and nothing could have been scaled."""
    shares = "{type: predictions, name: right, score: correct}"

    def check(language: str) -> tuple[int, str, str]:
        english = f"{{type: predictions, name: english, score: correct, where: {{language: {language}}}}}"
        rule = ("rule.guardrails=[{benchmark: english, margin: 0.05}]", "rule.primary=[right]")
        safety = "rule.safety=[{benchmark: right, max_rate: 0.001}]"
        with pytest.raises(SystemExit) as ended:
            main(
                [
                    "campaign",
                    "run",
                    str(campaign_file),
                    f"benchmarks=[{shares}, {english}]",
                    *rule,
                    safety,
                    "--check",
                ]
            )
        said = capfd.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    code, out, err = check("en")
    assert code == 0, err
    assert "  guardrail english, margin 5 points, on " in out and "of candidates that do no harm" in out
    assert "  safety right, at most 0.1%: " in out
    assert "warning: guardrail 'english' cannot pass: by the last look it would pass " in err
    assert "For 80%: a margin of " in err and "items instead of" in err
    assert "warning: safety benchmark 'right' cannot pass: " in err and "It takes 2,995 items." in err
    code, _, err = check("fr")
    assert code == 2 and "benchmark 'english': no validation row has {'language': 'fr'}" in err
    assert not (tmp_path / "home" / "campaigns").exists()
