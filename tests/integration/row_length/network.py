"""The network: the sum of a row's embeddings, squashed by a logarithm, into one number."""

from assay.training.methods.row_length.config import RowLengthConfig
from torch import Tensor, nn


class RowLengthNetwork(nn.Module):
    """Tokens and their mask in, one number a row out."""

    def __init__(self, config: RowLengthConfig) -> None:
        super().__init__()
        self.embedding = nn.Embedding(config.vocab_size, config.width)
        self.dropout = nn.Dropout(config.dropout)
        self.head = nn.Linear(config.width, 1)
        nn.init.uniform_(self.embedding.weight, 0.0, 0.1)
        nn.init.zeros_(self.head.bias)
        nn.init.constant_(self.head.weight, 0.1)

    def forward(self, input_ids: Tensor, mask: Tensor) -> Tensor:
        """The guessed logarithm of the number of tokens, [row], float32."""
        bag = (self.embedding(input_ids) * mask[:, :, None]).sum(dim=1)
        guesses: Tensor = self.head(self.dropout(bag.abs().log1p()))
        return guesses.squeeze(-1).float()
