"""A frozen language model that scores preference pairs.

Its weights are identified by the digest that a commit of them has, so an exported folder and its run are
recognized as one model.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import torch
from torch import nn

from assay.base.errors import ConfigError
from assay.base.shapes import Float32, Int64
from assay.data.dataset.columns import PROMPT_TOKENS, SEQUENCES
from assay.data.loader.batch import MicroBatch, Ragged
from assay.distributed.rank_device import device_of
from assay.models.causal_config import LONGEST, CausalShape, PretrainedCausalConfig, check_limits
from assay.models.lora import base_sha256, merge_adapters
from assay.models.pairs import pairs_of
from assay.models.token_scores import CausalNetwork, sequence_logprobs
from assay.records.dataset import DatasetManifest
from assay.training.checkpoint.parts import model_state
from assay.training.checkpoint.saver import weights_digest


def folder_digest(path: str) -> str:
    """Return the digest of the weights in a checkpoint folder, in float32."""
    return weights_digest(model_state(_from_folder(path)))


class ReferenceModel:
    """A language model that scores pairs."""

    def __init__(self, network: nn.Module, *, name: str) -> None:
        """`network` comes from a run's commit; `name` is used in errors."""
        if not isinstance(network, CausalNetwork):
            raise ConfigError(f"{name}: not a language model. Name one, or a run of sft or dpo.")
        if base_sha256(network) is not None:
            # The weights that an export of it has, and so their name.
            merge_adapters(network)
            network.requires_grad_(True)
        self._network = network.eval()
        self.name = name
        self.digest = weights_digest(model_state(network))
        self._device = device_of()
        self._network.to(self._device)

    @classmethod
    def from_folder(cls, path: str) -> "ReferenceModel":
        return cls(_from_folder(path), name=path)

    def check_rows(self, manifest: DatasetManifest) -> None:
        """Raise `ConfigError` if the dataset has a row that the model cannot take."""
        network = self._network.network
        of_config = (getattr(network.config, name) for name in LONGEST if hasattr(network.config, name))
        longest = next(of_config, manifest.lengths.max)  # some configurations do not say
        check_limits(CausalShape(network.get_input_embeddings().num_embeddings, longest), manifest, self.name)

    @torch.inference_mode()
    def of_pairs(self, rows: pa.Table, *, tokens_at_once: int) -> Float32[np.ndarray, "side pair"]:
        """Return the log-probabilities of each row's chosen and rejected completion, in nats.

        Rows of similar length share a pass of at most `tokens_at_once` tokens, padding counted, or of one pair.
        """
        sides = {name: rows[name].to_pylist() for name in SEQUENCES}
        widths = np.array([max(map(len, pair)) for pair in zip(*sides.values(), strict=True)], np.int64)
        found = np.empty((2, len(rows)), np.float32)
        for batch in _batches(widths, tokens_at_once):
            pairs = pairs_of(
                MicroBatch(
                    row_ids=batch.astype(np.uint64),
                    ragged={name: _ragged([side[row] for row in batch]) for name, side in sides.items()},
                    columns={PROMPT_TOKENS: pa.array(rows[PROMPT_TOKENS].to_numpy()[batch])},
                )
            )
            tensors = (torch.from_numpy(array).to(self._device) for array in (pairs.input_ids, pairs.in_completion()))
            logprobs = sequence_logprobs(self._network, *tensors).float().cpu().numpy()
            found[:, batch] = logprobs.reshape(2, -1)
        return found


def _from_folder(path: str) -> CausalNetwork:
    return CausalNetwork(PretrainedCausalConfig(type="pretrained", path=path))


def _batches(widths: Int64[np.ndarray, "row"], tokens_at_once: int) -> Iterator[Int64[np.ndarray, "taken"]]:
    """Yield row indices, shortest rows first; both sequences of a row are padded to the widest row."""
    order, first = np.argsort(widths, kind="stable"), 0
    for end in range(1, len(order) + 1):
        if end == len(order) or 2 * widths[order[end]] * (end + 1 - first) > tokens_at_once:
            yield order[first:end]
            first = end


def _ragged(rows: Sequence[Sequence[int]]) -> Ragged:
    lengths = np.array([len(row) for row in rows], np.int32)
    values = np.zeros((len(rows), int(lengths.max())), np.int64)
    for line, row in zip(values, rows, strict=True):
        line[: len(row)] = row
    return Ragged(values, lengths)
