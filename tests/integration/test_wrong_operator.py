"""A wrong corner of `torch.sum`, planted through torch.library in real processes: two symptoms, one cause.

Each symptom's run is made once, and replayed with its detector and without.
"""

import re
from pathlib import Path

import pytest

from assay.store.metrics.recorded import recorded_steps
from variants import soaked

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def dead(shared_planted_assay):
    """Has a run `dies`, ended by a NaN; and the step at which."""
    shared_planted_assay.plant("wrong_sum", WRONG_SUM="nan")
    died = shared_planted_assay.run(*shared_planted_assay.train_command("dies", 2), fails=True)
    assert "is not finite" in died.stderr
    step = int(re.findall(r"step (\d+):", died.stderr)[0])
    assert f"Step {step} is saved as a capsule" in died.stderr
    return shared_planted_assay, step


@pytest.mark.parametrize("detector", ["--watch", *soaked("--audit-ops")])
def test_nan_in_the_loss_is_traced_to_the_operator_and_its_rows(detector: str, dead) -> None:
    assay, step = dead
    found = assay.replay("dies", step, detector, fails=True)["operators"]["finding"]
    assert (found["operator"], found["module"]) == ("aten.sum.dim_IntList", "ClassifierNetwork")
    assert found["phase"] == "forward"
    assert 0 < len(found["row_ids"]) < 5


def test_without_a_detector_the_nan_comes_out_again_and_nothing_is_named(dead) -> None:
    assay, step = dead
    report = assay.replay("dies", step)
    assert (report["loss"], report["operators"], report["rows"]) == (None, None, None)


@pytest.fixture
def off(planted_assay, run_it):
    """Has a run `off`, a little wrong and none the wiser; and the first wrong step."""
    run, _, _ = run_it(trainer__max_steps=10)
    planted_assay.plant("wrong_sum", WRONG_SUM="off")
    assert planted_assay.train("off", 2, max_steps=10)["status"] == "succeeded"
    right, wrong = recorded_steps(Path(run.run_dir)), recorded_steps(planted_assay.home / "off")
    return planted_assay, min(step for step in right if right[step].values["loss"] != wrong[step].values["loss"])


def test_a_sum_that_is_only_a_little_off_is_found_though_the_replay_is_equal(off) -> None:
    assay, first = off
    # The bug is in the software, so the replay has it too: without the audit nothing is found.
    unaudited = assay.replay("off", first)
    assert (unaudited["verdict"], unaudited["operators"]) == ("equal", None)
    report = assay.replay("off", first, "--audit-ops", fails=True)
    assert report["verdict"] == "equal"
    found = report["operators"]["finding"]
    assert (found["operator"], found["module"]) == ("aten.sum.dim_IntList", "ClassifierNetwork")
    assert "g(n) eps sum|x|" in found["detail"]
