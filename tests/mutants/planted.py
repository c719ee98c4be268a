"""Nine mistakes that once passed nearly all tests of training, when all of them were in the code together.

Each is an exact replacement in one file, and names the quick tests of which at least one must fail on it alone.
`test_planted.py` (slow) plants them one by one in a copy of the sources.
"""

from typing import NamedTuple


class Planted(NamedTuple):
    """One mistake."""

    name: str
    file: str
    """Below `src/assay`."""
    right: str
    """The text that is there, once."""
    wrong: str
    """What stands there instead."""
    tests: tuple[str, ...]
    """Below `tests/unit/training`: files, or single tests, that must not all pass."""


OPTIMIZER, NETWORK = "training/trainer/optimizer.py", "training/methods/classify/network.py"

PLANTED = (
    Planted(
        "a cosine that never ends",
        OPTIMIZER,
        "(1 + math.cos(math.pi * progress)) / 2",
        "(1 + math.cos(math.pi * progress / 2)) / 2",
        ("trainer/test_optimizer.py::test_the_rate_of_each_step",),
    ),
    Planted(
        "decay on vectors",
        OPTIMIZER,
        '"weight_decay": 0.0}',
        '"weight_decay": config.weight_decay}',
        ("trainer/test_optimizer.py::test_matrices_decay_and_vectors_do_not",),
    ),
    Planted(
        "no clipping",
        OPTIMIZER,
        "factor * (max_norm / norm), factor)",
        "factor, factor)",
        ("trainer/test_against_pytorch.py::test_twenty_steps_are_those_of_a_loop_in_plain_pytorch",),
    ),
    Planted(
        "betas ignored",
        OPTIMIZER,
        "betas=config.betas,",
        "betas=(0.9, 0.999),",
        ("trainer/test_against_pytorch.py::test_twenty_steps_are_those_of_a_loop_in_plain_pytorch",),
    ),
    Planted(
        "epsilon ignored",
        OPTIMIZER,
        "eps=config.epsilon,",
        "eps=1e-8,",
        ("trainer/test_against_pytorch.py::test_twenty_steps_are_those_of_a_loop_in_plain_pytorch",),
    ),
    Planted(
        "no warm-up",
        OPTIMIZER,
        "if step <= schedule.warmup_steps:",
        "if step <= 0:",
        ("trainer/test_optimizer.py::test_the_rate_of_each_step",),
    ),
    Planted(
        "numeric metadata constant",
        "training/methods/classify/batch.py",
        "np.where(values < 0, 1, 65) + octaves",
        "np.where(values < 0, 1, 65)",
        ("methods/classify/test_batch.py::test_a_numbers_bucket_is_its_sign_and_its_quarter_octave",),
    ),
    Planted(
        "pooling over padding",
        NETWORK,
        "states = states * attention_mask[:, :, None]",
        "pass",
        ("methods/classify/test_network.py::test_padding_says_nothing_however_much_and_whatever_it_holds",),
    ),
    Planted(
        "retention that keeps the worst",
        "training/checkpoint/retention.py",
        "reverse=higher_is_better,",
        "reverse=not higher_is_better,",
        ("checkpoint/test_retention.py",),
    ),
)
