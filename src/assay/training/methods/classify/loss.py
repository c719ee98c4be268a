"""The loss of a binary classifier."""

from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits


def cross_entropy_sum(logits: Float[Tensor, "row"], labels: Float[Tensor, "row"]) -> Float[Tensor, ""]:
    """Sum over rows of -[y log p + (1 - y) log(1 - p)] in nats, p = sigmoid(logit)."""
    return binary_cross_entropy_with_logits(logits, labels, reduction="sum")
