"""The loss of a reward model: Bradley-Terry, with margins and centring.

    p(chosen is preferred) = sigmoid(r_c - r_r)                    r_c, r_r: rewards of chosen and rejected

    loss of a pair = -log sigmoid(r_c - r_r - m) + c (r_c + r_r)^2

`m`, the margin, says how much better the chosen one is (Llama 2: Touvron et al. 2023, arXiv:2307.09288, 3.2.2);
the rest of the first term is Ouyang et al. 2022, arXiv:2203.02155. Only differences of rewards matter to it, so
rewards drift; the second term keeps their mean near zero (Eisenstein et al. 2023, arXiv:2312.09244, 4).
"""

from torch import Tensor
from torch.nn.functional import logsigmoid

from assay.base.shapes import Float


def reward_losses(
    chosen: Float[Tensor, "pair"], rejected: Float[Tensor, "pair"], margins: Float[Tensor, "pair"], *, centring: float
) -> Float[Tensor, "pair"]:
    """Return the loss of each pair, in nats (the centring term is in rewards squared)."""
    losses = -logsigmoid(chosen - rejected - margins)
    return losses + centring * (chosen + rejected).square() if centring else losses
