"""The drill passes for a recipe that survives, and says what failed where one does not."""

import pytest

from assay.base.config import LoadedConfig
from assay.cli.main import main
from assay.store.attempts import saved_attempts
from assay.store.home import Home
from assay.store.ledger.goodput import goodput_of
from assay.workflows.drill import Scenario, drill, scenarios


@pytest.fixture
def few_scenarios(monkeypatch: pytest.MonkeyPatch) -> None:
    """The undisturbed pilot, a kill in a commit, and a damaged commit."""
    some = scenarios(num_steps=12, commit_every=2, workers=2)
    names = ("undisturbed", "a rank killed in a commit", "a commit's file with one bit flipped")
    chosen = [scenario for scenario in some if scenario.name in names]
    monkeypatch.setattr("assay.workflows.drill.scenarios", lambda **_: chosen)


@pytest.mark.slow
def test_a_drill_passes_and_its_device_time_adds_up(few_scenarios, tiny_recipe_tree, tmp_path, monkeypatch) -> None:
    home = Home.at(tmp_path)
    report = drill(home, LoadedConfig(tiny_recipe_tree, {}), num_steps=12, workers=2)
    assert report.passed(), [exercise.problem for exercise in report.exercises]
    assert [exercise.num_attempts for exercise in report.exercises] == [1, 2, 2]
    with home.open_ledger() as ledger:
        account = goodput_of(ledger, ledger.runs())
    assert abs(sum(account.by_phase.values()) / account.held_device_s - 1) < 0.001
    assert len(account.interruptions) == 2
    assert account.interruptions[0].lost_device_s > 0 and account.interruptions[0].startup_device_s > 0
    assert 0 < account.goodput() < 1 and account.ettr() < account.goodput()


def test_a_report_that_could_not_be_written_is_refused_before_the_drill(tmp_path, capfd) -> None:
    (tmp_path / "recipe.yaml").touch()
    with pytest.raises(SystemExit) as ended:
        main(["train", "drill", str(tmp_path / "recipe.yaml"), "--out", str(tmp_path / "missing" / "report.json")])
    assert (ended.value.code, "does not exist" in capfd.readouterr().err) == (2, True)


@pytest.mark.slow
def test_a_drill_has_nodes_leave_and_come_and_gives_a_slow_one_fewer_lanes(
    tiny_recipe_tree, tmp_path, monkeypatch
) -> None:
    undisturbed, *others = scenarios(num_steps=18, commit_every=3, workers=2)
    chosen = [undisturbed, *(scenario for scenario in others if scenario.on_nodes)]
    monkeypatch.setattr("assay.workflows.drill.scenarios", lambda **_: chosen)
    home = Home.at(tmp_path)
    report = drill(home, LoadedConfig(tiny_recipe_tree, {}), num_steps=18, workers=2)
    assert report.passed(), [exercise.problem for exercise in report.exercises]
    _, come_and_go, slow = (saved_attempts(home.run_dir(item.run_id)) for item in report.exercises)
    assert [attempt.world_size for attempt in come_and_go] == [2, 1, 2]
    assert [attempt.outcome for attempt in come_and_go] == ["preempted", "killed", "succeeded"]
    assert [sum(attempt.loads) for attempt in slow] == [8, 8]
    assert slow[0].loads == (4, 4) and slow[1].loads[1] < 4


@pytest.mark.slow
def test_a_pilot_that_ends_with_other_weights_fails_the_drill(tiny_recipe_tree, tmp_path, monkeypatch) -> None:
    # A plain all-reduce adds in another order on two ranks than one does alone: not the same bits.
    tiny_recipe_tree["trainer"]["gradient_sum"] = "all_reduce"
    resized = scenarios(num_steps=12, commit_every=2, workers=4)
    chosen = [resized[0], *(scenario for scenario in resized if scenario.name.startswith("resized"))]
    monkeypatch.setattr("assay.workflows.drill.scenarios", lambda **_: chosen)
    home = Home.at(tmp_path)
    report = drill(home, LoadedConfig(tiny_recipe_tree, {}), num_steps=12, workers=4)
    assert not report.passed()
    assert report.exercises[1].problem == "the weights differ from those of the undisturbed run"


@pytest.mark.slow
def test_an_exercise_whose_fault_never_came_fails_and_says_so(tiny_recipe_tree, tmp_path, monkeypatch) -> None:
    kill = {"type": "kill", "rank": 1, "step": 6, "phase": "compute"}
    chosen = [
        Scenario("undisturbed"),
        Scenario("killed", (kill,)),
        Scenario("killed in a second attempt", ({**kill, "rank": 0, "step": 5, "attempt": 2, "phase": "data"},)),
        Scenario("killed on a rank that is not there", (kill,), world_sizes=(1,)),
    ]
    monkeypatch.setattr("assay.workflows.drill.scenarios", lambda **_: chosen)
    home = Home.at(tmp_path)
    report = drill(home, LoadedConfig(tiny_recipe_tree, {}), num_steps=12, workers=2)
    assert not report.passed()
    assert [exercise.problem for exercise in report.exercises] == [
        "",
        "",
        "faults.0 (kill) did not happen: it is planned for attempt 2, but the last one was attempt 1.",
        "faults.0 (kill) did not happen: attempt 1 never reached phase 'compute' of step 6 on rank 1.",
    ]
