"""Scores of logits beside float64, of plain torch code and of the kernel.

The kernel runs on a GPU if there is one, else under Triton's interpreter.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from assay.models.kernels import logits as logits_module
from assay.models.kernels.logits import LogitScores, logit_gradients, score_logits
from assay.models.kernels.triton_use import runs_triton

pytestmark = pytest.mark.filterwarnings("ignore:(overflow|invalid value|underflow|divide by zero):RuntimeWarning")
"""Of NumPy, in which the interpreter computes."""
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2**-8 if DEVICE == "cuda" else 2**-7}
"""Of gradients: some roundings of float32, and that of what is stored. The interpreter truncates to bfloat16."""
CASES = ["random", "extreme", "ties", "one entry", "several blocks", "bias"]


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The kernel's module, which then computes all logits."""
    module = pytest.importorskip("assay.models.kernels.logits_kernel")
    monkeypatch.setattr(logits_module, "runs_triton", lambda device: True)
    return module


@pytest.fixture(params=["plain", "kernel"])
def either(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain torch code, then the kernel."""
    if request.param == "kernel":
        request.getfixturevalue("kernel")
    else:
        monkeypatch.setattr(logits_module, "runs_triton", lambda device: False)


def case(name: str, dtype: torch.dtype) -> tuple[Tensor, Tensor | None, Tensor]:
    """Logits, bias and targets."""
    generator = torch.Generator().manual_seed(len(name))
    num_tokens, num_entries = {"one entry": (3, 1), "several blocks": (2, 9001)}.get(name, (5, 37))
    logits = 3 * torch.randn(num_tokens, num_entries, generator=generator)
    targets = torch.randint(num_entries, (num_tokens,), generator=generator)
    if name == "extreme":
        logits *= 1000
        logits[0], logits[1], logits[2] = -1e4, 1e4, 0
        logits[3, 5] = 1e4
        targets[3:5] = torch.stack([torch.tensor(5), logits[4].argmax()])
    if name == "ties":
        logits = logits.round()
        targets[:3] = logits.argmax(dim=1)[:3]
        logits[:, -1] = logits.amax(dim=1)
    if name == "several blocks":
        logits[0, -1], targets[0], targets[1] = 30.0, 9000, 5000
    bias = torch.randn(num_entries, generator=generator).to(DEVICE) if name == "bias" else None
    return logits.to(DEVICE, dtype), bias, targets.to(DEVICE)


def reference(logits: Tensor, bias: Tensor | None, targets: Tensor) -> LogitScores:
    exact = logits.double() if bias is None else logits.double() + bias
    logprobs = exact.log_softmax(-1)
    chosen = exact.gather(1, targets[:, None])[:, 0]
    entropies = -(logprobs.exp() * logprobs).sum(-1)
    # With a bias the comparison is of float32 sums, as the head's is.
    compared = exact if bias is None else (logits.float() + bias).double()
    is_argmax = compared.gather(1, targets[:, None])[:, 0] == compared.amax(-1)
    return LogitScores(chosen - exact.logsumexp(-1), entropies, is_argmax, exact.logsumexp(-1))


def reference_gradient(
    logits: Tensor, bias: Tensor | None, targets: Tensor, grad_logprobs: Tensor, grad_entropies: Tensor | None
) -> Tensor:
    leaf = logits.double().requires_grad_()
    scores = reference(leaf, bias, targets)
    total = (scores.logprobs * grad_logprobs).sum()
    if grad_entropies is not None:
        total = total + (scores.entropies * grad_entropies).sum()
    return torch.autograd.grad(total, leaf)[0]


def scored(logits: Tensor, bias: Tensor | None, targets: Tensor) -> LogitScores:
    scores = LogitScores.empty(len(targets), targets.device)
    score_logits(logits.clone(), bias, targets, scores)
    return scores


def assert_scores_are_close(scores: LogitScores, expected: LogitScores, atol: float = 2e-6) -> None:
    # Sums of float32 over up to 9001 entries in blocks; a logprob of size x is stored to x * 6e-8.
    for ours, exact in zip(scores, expected, strict=True):
        if exact.dtype == torch.bool:
            assert torch.equal(ours, exact)
        else:
            torch.testing.assert_close(ours.double(), exact, rtol=1e-6, atol=atol)


@pytest.mark.usefixtures("either")
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", CASES)
def test_scores_are_those_of_float64(name: str, dtype: torch.dtype) -> None:
    inputs = case(name, dtype)
    # Plain code subtracts logarithms of totals, of size 1e4 here, that are stored in float32.
    is_rounded = name == "extreme" and not runs_triton(inputs[0].device)
    assert_scores_are_close(scored(*inputs), reference(*inputs), atol=1e-3 if is_rounded else 2e-6)


@pytest.mark.usefixtures("either")
@pytest.mark.parametrize("has_entropies", [False, True])
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_float64(name: str, dtype: torch.dtype, has_entropies: bool) -> None:
    logits, bias, targets = case(name, dtype)
    gradients = torch.randn(2, len(targets), generator=torch.Generator().manual_seed(3)).to(DEVICE)
    gradients[:, 0] = 0
    grad_entropies = gradients[1] if has_entropies else None
    expected = reference_gradient(logits, bias, targets, gradients[0], grad_entropies)
    scores = scored(logits, bias, targets)
    found = logit_gradients(logits, bias, targets, scores.log_totals, scores.entropies, gradients[0], grad_entropies)
    # exp(x - log s) has an error of a unit of float32 in x.
    atol = 1e-6 if name != "extreme" else 1e-3
    torch.testing.assert_close(found.double(), expected, rtol=TOLERANCE[dtype], atol=atol)
    assert not found[0].any()


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", CASES)
def test_both_in_one_launch_have_the_bits_of_two(kernel: Any, name: str, dtype: torch.dtype) -> None:
    logits, bias, targets = case(name, dtype)
    grad_logprobs = torch.linspace(-1, 2, len(targets), device=DEVICE)
    expected, replaced = scored(logits, bias, targets), logits.clone()
    of_scores = expected.log_totals, expected.entropies
    kernel.replace_by_gradient(replaced, bias, targets, *of_scores, grad_logprobs, None)
    scores = LogitScores.empty(len(targets), targets.device)
    kernel.score_rows(logits, bias, targets, scores, grad_logprobs)
    assert all(map(torch.equal, (*scores, logits), (*expected, replaced)))


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_a_row_alone_has_the_bits_that_it_has_among_others(dtype: torch.dtype) -> None:
    logits, bias, targets = case("random", dtype)
    together = scored(logits, bias, targets)
    for row in range(len(targets)):
        rows = slice(row, row + 1)
        alone = scored(logits[rows].contiguous(), bias, targets[rows])
        assert all(map(torch.equal, alone, together.rows(rows)))


@pytest.mark.usefixtures("kernel")
def test_no_tokens_have_no_scores() -> None:
    scores = scored(torch.zeros(0, 5, device=DEVICE), None, torch.zeros(0, dtype=torch.int64, device=DEVICE))
    assert [len(score) for score in scores] == [0, 0, 0, 0]


@pytest.mark.usefixtures("either")
def test_a_row_that_is_not_finite_has_scores_that_are_not() -> None:
    logits, _, targets = case("random", torch.float32)
    logits[0, 3], logits[1, 4] = torch.nan, torch.inf
    scores = scored(logits, None, targets)
    assert scores.logprobs.isfinite().tolist() == [False, False, True, True, True]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda scores: scores._replace(entropies=scores.entropies * 1.001),
        lambda scores: scores._replace(logprobs=scores.logprobs + 1e-4),
        lambda scores: scores._replace(is_argmax=~scores.is_argmax),
    ],
)
def test_the_comparison_notices_wrong_scores(wrong: Callable[[LogitScores], Any]) -> None:
    inputs = case("random", torch.float32)
    with pytest.raises(AssertionError):
        assert_scores_are_close(wrong(scored(*inputs)), reference(*inputs))
