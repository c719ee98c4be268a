"""A failure's sentences say who, what and where, and are made from its fields."""

import pytest

from assay.records.failure import Failure


def failure(failure_kind, text, **more) -> Failure:
    return Failure(failure_kind=failure_kind, run_id="r", attempt=1, signature="s", text=text, **more)


@pytest.mark.parametrize(
    ("found", "headline", "sentence"),
    [
        (
            failure("killed_by_signal", "SIGKILL", rank=1),
            "rank 1 was killed by SIGKILL",
            "rank 1 was killed by SIGKILL",
        ),
        (
            failure("hang", "silent for 61 s", rank=1, phase="data", step=7, file="s.txt"),
            "rank 1 hung in 'data' of step 7",
            "rank 1 hung in 'data' of step 7: silent for 61 s; stacks in /runs/r/s.txt",
        ),
        (
            failure("hang", "silent", rank=0, phase="startup"),
            "rank 0 hung in 'startup' before its first sign of life",
            "rank 0 hung in 'startup' before its first sign of life: silent; it wrote no stacks",
        ),
        (
            failure("exception", "ValueError: no", rank=3, file="errors/t.txt"),
            "rank 3: ValueError: no",
            "rank 3: ValueError: no; traceback in /runs/r/errors/t.txt",
        ),
        (
            failure("lost_node", "node 1 was lost with ranks 2 to 3"),
            "node 1 was lost with ranks 2 to 3",
            "node 1 was lost with ranks 2 to 3",
        ),
    ],
)  # fmt: skip
def test_the_sentence_says_who_and_what_and_where_to_read_more(found, headline, sentence) -> None:
    assert found.headline() == headline
    assert found.sentence("/runs/r") == sentence
