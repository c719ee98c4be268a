"""Why a step looks bad, from what a replay found."""

import pytest

from assay.records.replay import Compared, OperatorFinding, OperatorWatchReport, ReplayReport, RowFinding, RowSearch
from assay.reporting.views.triage_statements import triage_text
from assay.store.metrics.recorded import RecordedStep
from assay.triage.explain import explain

NO_ROW = RowSearch(
    criterion="not finite", rows=(), num_rows=32, num_passes=1, step_loss=None, loss_without=None,
    earlier_loss=None,
)  # fmt: skip


def report(step: int, loss: float | None, gradient_norm: float | None = 1.0) -> ReplayReport:
    return ReplayReport(
        run_id="r", step=step, through_step=step, from_step=0, attempt=0, recorded_code_version="1",
        code_version="1", verdict="equal", compared=10, at_step=(), first_difference=None, loss=loss,
        gradient_norm=gradient_norm, rows=NO_ROW,
    )  # fmt: skip


def recorded(*losses: float) -> dict[int, RecordedStep]:
    return {
        step: RecordedStep(1, {"loss": loss, "gradient_norm": 1.0, "learning_rate": 1000.0}, {})
        for step, loss in enumerate(losses, start=1)
    }


@pytest.mark.parametrize(("loss", "norm"), [(None, None), (5e8, None), (5e8, 1e9)])
def test_the_step_that_killed_a_run_at_a_learning_rate_of_1000_is_a_divergence_however_early(loss, norm):
    found = explain(report(3, loss, norm), recorded(0.69, 4e5), learning_rate=1000.0)
    assert found.cause == "divergence"
    text = triage_text(found.because)
    assert "Lower trainer.optimizer.learning_rate (1e+03 at its peak, 1e+03 in the step before), or warm" in text


def test_in_a_warm_up_both_rates_are_named_the_recipes_first():
    found = explain(report(3, None, None), recorded(0.69, 4e5), learning_rate=5000.0)
    text = triage_text(found.because)
    assert "trainer.optimizer.learning_rate (5e+03 at its peak, 1e+03 in the step before)" in text


@pytest.mark.parametrize(("num_bad", "cause"), [(32, "divergence"), (17, "divergence"), (3, "bad data")])
def test_where_most_rows_are_not_finite_the_weights_are_to_blame_and_not_the_rows(num_bad, cause):
    rows = tuple(RowFinding(row_id=row, location="p", lane=0, loss=None) for row in range(num_bad))
    found = report(2, None, None).model_copy(update={"rows": NO_ROW.model_copy(update={"rows": rows})})
    assert explain(found, recorded(0.69)).cause == cause


def test_an_operator_that_makes_a_nan_of_ruined_weights_is_no_wrong_arithmetic():
    finding = OperatorFinding(
        operator="aten.mm.default", problem="not finite", module="", phase="forward", inputs=(), output="",
        detail="", lane=None, row_ids=(),
    )  # fmt: skip
    watched = OperatorWatchReport(mode="watch", finding=finding, num_calls=1, num_operators=1, not_audited={})
    found = report(2, None, None).model_copy(update={"operators": watched})
    assert explain(found, recorded(0.69)).cause == "divergence"


def test_rows_that_a_wrong_operator_makes_bad_are_not_to_blame():
    finding = OperatorFinding(
        operator="aten.sum.dim_IntList", problem="outside its error bound", module="", phase="forward",
        inputs=(), output="", detail="", lane=None, row_ids=(7,),
    )  # fmt: skip
    watched = OperatorWatchReport(mode="audit-ops", finding=finding, num_calls=1, num_operators=1, not_audited={})
    rows = NO_ROW.model_copy(update={"rows": (RowFinding(row_id=7, location="p", lane=0, loss=None),)})
    found = report(2, None, None).model_copy(update={"rows": rows})
    assert explain(found, recorded(0.69)).cause == "bad data"
    audited = found.model_copy(update={"operators": watched})
    assert explain(audited, recorded(0.69)).cause == "wrong arithmetic"


def test_a_loss_like_those_before_is_ordinary():
    losses = [0.6 + 0.01 * (step % 3) for step in range(20)]
    assert explain(report(21, 0.61), recorded(*losses)).cause == "ordinary"


def test_a_spike_below_ten_times_the_beginning_is_optimisation():
    losses = [0.6 + 0.01 * (step % 3) for step in range(20)]
    assert explain(report(21, 4.0), recorded(*losses)).cause == "optimisation"


@pytest.mark.parametrize(
    ("step", "quantity", "version", "cause", "text"),
    [
        (1, "loss", "1", "other machine or code", "already at the first replayed step loss is on record as a"),
        (1, "gradient_norm", "1", "wrong arithmetic", "the loss comes out as recorded; at step 1 gradient_norm"),
        (1, "gradient_norm", "2", "other machine or code", "The run was made by 2, this is 1"),
        (4, "loss", "2", "wrong arithmetic", "steps 1 to 3 come out as recorded; at step 4 loss"),
    ],
)
def test_where_the_first_difference_lies_says_what_is_to_blame(step, quantity, version, cause, text):
    first = Compared(step=step, quantity=quantity, recorded="a", replayed="b", is_equal=False)
    differing = {"first_difference": first, "recorded_code_version": version}
    found = explain(report(4, 0.6).model_copy(update=differing), recorded(0.6, 0.6, 0.6))
    assert found.cause == cause and text in triage_text(found.because)


def test_every_cause_has_its_sentence():
    losses = [0.6 + 0.01 * (step % 3) for step in range(20)]
    bad = RowFinding(row_id=7, location="p", lane=0, loss=9.0)
    of_loss = NO_ROW.model_copy(update={"rows": (bad,), "step_loss": 3.0, "loss_without": 0.6, "earlier_loss": 0.7})
    for found, text in (
        (report(21, 0.61), "over the 20 steps before: median 0.61, so this is +0.0 standard deviations"),
        (report(3, 0.61), "too few steps before it"),
        (report(21, 4.0), "The largest gradient before it is that of step 1: norm 1, median 1."),
        (report(21, 9.0), "the loss is 9; training began at 0.6. 0 of the step's 32 rows cause this"),
        (report(21, 4.0).model_copy(update={"rows": of_loss}), "mean loss of 3, the rows of the steps before 0.7; "),
    ):
        assert text in triage_text(explain(found, recorded(*losses[: found.step - 1])).because)
