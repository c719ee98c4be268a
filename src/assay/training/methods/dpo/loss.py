"""The losses of direct preference optimization, one for each pair.

    s_c, s_r   log pi(completion | prompt) - log pi_ref(completion | prompt), of chosen and rejected: the sum
               over a completion's tokens, or their mean (`per token` below)
    d          s_c - s_r
    e          share of pairs that are labelled the wrong way round

    sigmoid        -log sigmoid(b d)
                   Rafailov et al. 2023, arXiv:2305.18290, eq. 7
                   -(1 - e) log sigmoid(b d) - e log sigmoid(-b d)
                   conservative DPO: Mitchell 2023, "A note on DPO with noisy preferences"
    sigmoid_norm   as sigmoid, per token
                   length-normalised DPO: Lambert et al. 2024, arXiv:2411.15124, after Meng et al. 2024,
                   arXiv:2405.14734
    robust         [-(1 - e) log sigmoid(b d) + e log sigmoid(-b d)] / (1 - 2 e)
                   Chowdhury et al. 2024, arXiv:2403.00409
    ipo            (d - 1 / (2 b))^2, per token
                   Azar et al. 2023, arXiv:2310.12036, eq. 17

If labels are flipped with probability e, the expectation of the robust loss is the sigmoid loss on clean labels. The
conservative loss is minimal where the model's probability is 1 - e.

A weighted -log pi per token of the chosen completion may be added (Pang et al. 2024, arXiv:2404.19733): it keeps up the
likelihood of chosen completions, which the losses above can lower, too.
"""

from torch import Tensor
from torch.nn.functional import logsigmoid

from assay.base.shapes import Float
from assay.training.methods.dpo.config import IpoLoss, RobustLoss, SigmoidLoss


def pair_losses(differences: Float[Tensor, "pair"], loss: SigmoidLoss | RobustLoss | IpoLoss) -> Float[Tensor, "pair"]:
    """Return the losses of pairs with these values of `d`."""
    if isinstance(loss, IpoLoss):
        return (differences - 1 / (2 * loss.beta)).square()
    right, wrong = -logsigmoid(loss.beta * differences), -logsigmoid(-loss.beta * differences)
    share = loss.label_smoothing
    if isinstance(loss, RobustLoss):
        return ((1 - share) * right - share * wrong) / (1 - 2 * share)
    return (1 - share) * right + share * wrong if share else right
