"""The losses, each a sum over rows."""

from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss

from assay.base.shapes import Float, Int


def cross_entropy_sum(logits: Float[Tensor, "row"], labels: Float[Tensor, "row"]) -> Float[Tensor, ""]:
    """Sum over rows of -[y log p + (1 - y) log(1 - p)] in nats, p = sigmoid(logit)."""
    return binary_cross_entropy_with_logits(logits, labels, reduction="sum")


def class_cross_entropy_sum(logits: Float[Tensor, "row class"], labels: Int[Tensor, "row"]) -> Float[Tensor, ""]:
    """Sum over rows of -log p[label] in nats, p = softmax(logits)."""
    return cross_entropy(logits, labels, reduction="sum")


def squared_error_sum(outputs: Float[Tensor, "row"], targets: Float[Tensor, "row"]) -> Float[Tensor, ""]:
    """Sum over rows of (output - target)^2."""
    return mse_loss(outputs, targets, reduction="sum")
