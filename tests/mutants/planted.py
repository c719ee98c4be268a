"""Mistakes that tests must notice. Nine of them once passed nearly all tests of training together.

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
    """Below `tests/unit`: files, or single tests, that must not all pass."""


OPTIMIZER, NETWORK = "training/trainer/optimizer.py", "training/methods/classify/network.py"

PLANTED = (
    Planted(
        "a cosine that never ends",
        OPTIMIZER,
        "(1 + math.cos(math.pi * progress)) / 2",
        "(1 + math.cos(math.pi * progress / 2)) / 2",
        ("training/trainer/test_optimizer.py::test_the_rate_of_each_step",),
    ),
    Planted(
        "decay on vectors",
        OPTIMIZER,
        '"weight_decay": 0.0}',
        '"weight_decay": config.weight_decay}',
        ("training/trainer/test_optimizer.py::test_matrices_decay_and_vectors_do_not",),
    ),
    Planted(
        "no clipping",
        OPTIMIZER,
        "factor * (max_norm / norm), factor)",
        "factor, factor)",
        ("training/trainer/test_against_pytorch.py::test_twenty_steps_are_those_of_a_loop_in_plain_pytorch",),
    ),
    Planted(
        "betas ignored",
        OPTIMIZER,
        "betas=config.betas,",
        "betas=(0.9, 0.999),",
        ("training/trainer/test_against_pytorch.py::test_twenty_steps_are_those_of_a_loop_in_plain_pytorch",),
    ),
    Planted(
        "epsilon ignored",
        OPTIMIZER,
        "eps=config.epsilon,",
        "eps=1e-8,",
        ("training/trainer/test_against_pytorch.py::test_twenty_steps_are_those_of_a_loop_in_plain_pytorch",),
    ),
    Planted(
        "no warm-up",
        OPTIMIZER,
        "if step <= schedule.warmup_steps:",
        "if step <= 0:",
        ("training/trainer/test_optimizer.py::test_the_rate_of_each_step",),
    ),
    Planted(
        "numeric metadata constant",
        "training/methods/classify/batch.py",
        "np.where(values < 0, 1, 65) + octaves",
        "np.where(values < 0, 1, 65)",
        ("training/methods/classify/test_batch.py::test_a_numbers_bucket_is_its_sign_and_its_quarter_octave",),
    ),
    Planted(
        "pooling over padding",
        NETWORK,
        "states = states * attention_mask[:, :, None]",
        "pass",
        ("training/methods/classify/test_network.py::test_padding_says_nothing_however_much_and_whatever_it_holds",),
    ),
    Planted(
        "retention that keeps the worst",
        "training/checkpoint/retention.py",
        "reverse=higher_is_better,",
        "reverse=not higher_is_better,",
        ("training/checkpoint/test_retention.py",),
    ),
    Planted(
        "a captured pass over old inputs",
        "training/trainer/captured.py",
        "captured.inputs[name].copy_(tensor, non_blocking=True)",
        "pass",
        ("training/trainer/test_captured.py",),
    ),
    Planted(
        "an update with a gradient that is not finite",
        OPTIMIZER,
        "is_finite.logical_not().float()",
        "torch.zeros((), device=is_finite.device)",
        ("training/trainer/test_optimizer.py", "training/trainer/test_captured.py"),
    ),
    Planted(
        "passes of a lane that are added twice",
        "distributed/flat_lane_sum.py",
        "self.pass_gradient.clone()",
        "self.pass_gradient",
        ("training/trainer/test_captured.py", "training/trainer/test_step.py"),
    ),
    Planted(
        "receipts that count the rows of one part",
        "data/loader/receipts.py",
        "self.num_rows + other.num_rows",
        "self.num_rows",
        ("data/loader/test_receipts.py",),
    ),
    Planted(
        "targets that lag behind their tokens",
        "data/loader/line.py",
        "np.roll(input_ids[mask], -1)",
        "np.roll(input_ids[mask], 1)",
        ("training/methods/test_lines.py",),
    ),
    Planted(
        "a commit of an attempt that has a successor",
        "store/commit_log.py",
        "if self._summary.attempt > self.attempt:",
        "if False:",
        ("store/test_commit_log.py",),
    ),
)
