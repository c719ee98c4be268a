import pytest

from assay.workers.fine_tuning.job_metrics import is_shown


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("loss", True),
        ("learning_rate", True),
        ("validation_auc", True),
        ("validation_nats_per_token", False),
        ("validation_token_accuracy", False),
        ("exchange_s", False),
    ],
)
def test_a_loss_over_rows_does_not_stand_beside_that_over_tokens(name: str, expected: bool) -> None:
    """`valid_loss` is per token: the run's own series of the same weights is per row."""
    assert is_shown(name) is expected
