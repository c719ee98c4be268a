"""Base models below the adapters of sessions' models: each is held once in a process, while a model uses it."""

from typing import Any
from weakref import WeakValueDictionary

import torch

from assay.base.digest import canonical_json
from assay.base.seeds import derive_key
from assay.models.causal import frozen_base
from assay.training.trainer.method_config import CausalMethodConfig


class FrozenBases:
    """The base models of this process."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._networks = WeakValueDictionary[str, Any]()

    def network(self, config: CausalMethodConfig, *, seed: int) -> Any:
        """Return the model of a configuration without adapters. `seed`: of its weights, if they are new."""
        model = config.model.model_copy(update={"lora": None})
        key = canonical_json([model.model_dump(mode="json"), seed])
        if (network := self._networks.get(key)) is None:
            torch.manual_seed(derive_key(seed, "weights"))
            network = self._networks[key] = frozen_base(model).to(self.device)
        return network
