"""Which commits stay."""

from hypothesis import given
from hypothesis import strategies as st

from assay.records.commit import Commit
from assay.records.cursor import Cursor
from assay.training.checkpoint.retention import RetentionConfig, folders_to_retire


def commit(step: int, *, is_verified: bool = False, metric: float | None = None) -> Commit:
    return Commit(
        attempt=1, world_size=1, step=step, cursor=Cursor(step_in_epoch=step), committed_s=0.0,
        folder=f"checkpoints/{step}", files=(), weights_digest=f"w{step}", receipts_from_step=0, rows_trained=1,
        is_verified=is_verified, metric=metric,
    )  # fmt: skip


COMMITS = [commit(step) for step in (1, 2, 3)]
LAST_ONE = RetentionConfig(keep_last=1, keep_best=0)


def test_a_commit_whose_evaluation_is_due_stays_until_it_is_done():
    assert folders_to_retire(COMMITS, commit(4), LAST_ONE) == (
        "checkpoints/1",
        "checkpoints/2",
        "checkpoints/3",
    )
    awaited = ["checkpoints/2", "checkpoints/3"]
    assert folders_to_retire(COMMITS, commit(4), LAST_ONE, awaited=awaited) == ("checkpoints/1",)
    assert folders_to_retire(COMMITS[1:], commit(5), LAST_ONE) == ("checkpoints/2", "checkpoints/3")


def test_the_newest_verified_commit_stays_however_old_it_is() -> None:
    commits = [commit(1, is_verified=True), commit(2, is_verified=True), commit(3), commit(4), commit(5)]
    retired = folders_to_retire(commits, commit(6), RetentionConfig(keep_last=2, keep_best=0))
    assert retired == ("checkpoints/1", "checkpoints/3", "checkpoints/4")


def retained(
    metrics: list[float | None], *, keep_last: int = 1, keep_best: int, higher_is_better: bool = True
) -> list[float | None]:
    """The metrics of the commits that stay, oldest first, once all are made; each retires what it may."""
    commits: list[Commit] = []
    for step, metric in enumerate(metrics, start=1):
        newest = commit(step, metric=metric)
        retention = RetentionConfig(keep_last=keep_last, keep_best=keep_best)
        retired = folders_to_retire(commits, newest, retention, higher_is_better=higher_is_better)
        commits = [before for before in commits if before.folder not in retired] + [newest]
    return [stays.metric for stays in commits]


def test_the_best_commits_stay_and_the_worst_go() -> None:
    assert retained([0.7, 0.9, 0.6, 0.8, 0.5], keep_best=1) == [0.9, 0.5]
    assert retained([0.7, 0.9, 0.6, 0.8, 0.5], keep_best=2) == [0.9, 0.8, 0.5]
    assert retained([0.7, 0.9, 0.6, 0.8, 0.5], keep_best=0) == [0.5]
    assert retained([0.9, 0.6, 0.8, 0.7], keep_last=2, keep_best=1) == [0.9, 0.8, 0.7]


def test_of_an_error_the_lowest_is_the_best() -> None:
    assert retained([0.7, 0.2, 0.6, 0.4, 0.5], keep_best=1, higher_is_better=False) == [0.2, 0.5]
    assert retained([0.7, 0.2, 0.6, 0.4, 0.5], keep_best=2, higher_is_better=False) == [0.2, 0.4, 0.5]
    assert retained([3.0, 0.0, -1.0, None, 2.0], keep_best=1, higher_is_better=False) == [-1.0, 2.0]


def test_a_metric_below_zero_is_a_metric() -> None:
    assert retained([-3.0, -1.0, 0.0, -2.0, -5.0], keep_best=1) == [0.0, -5.0]
    assert retained([-3.0, -1.0, -2.0, -5.0], keep_best=2) == [-1.0, -2.0, -5.0]


def test_a_commit_that_was_not_measured_is_none_of_the_best() -> None:
    assert retained([None, -0.4, None, None], keep_best=1) == [-0.4, None]
    assert retained([None, None, None], keep_best=2) == [None]


@given(metrics=st.lists(st.floats(-10, 10), min_size=1, max_size=12, unique=True), keep_best=st.integers(0, 4))
def test_what_stays_is_the_newest_and_the_best_of_all_there_ever_were(metrics, keep_best) -> None:
    for higher_is_better in (True, False):
        best = sorted(metrics, reverse=higher_is_better)[:keep_best]
        stayed = retained(metrics, keep_best=keep_best, higher_is_better=higher_is_better)
        assert set(stayed) == {*best, metrics[-1]}
