"""Converts between the trained network and the exported transformers class, which hold the same modules."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging as hf_logging

from assay.models.pretrained import ModelKind, load_pretrained
from assay.training.methods.classify.config import NUMERIC_BUCKETS, ClassifyConfig
from assay.training.methods.classify.label_config import BinaryLabel, ClassesLabel, NumberLabel
from assay.training.methods.classify.modeling_assay import AssayClassifier, AssayClassifierConfig
from assay.training.methods.classify.network import ClassifierNetwork

MODULE_FILE = "modeling_assay.py"
"""Name of the model code in an exported folder; the source is the module of that name in this folder."""

_CLASSIFIER = ModelKind(AssayClassifier, "a classifier")
_PATH_KEY = "_name_or_path"
"""Key with the path of a pretrained encoder on this machine, which is not exported."""


def save_exported(network: ClassifierNetwork, config: ClassifyConfig, folder: Path, types: Mapping[str, str]) -> None:
    """Write `model.safetensors`, `config.json` and the model code; `types`: Arrow type of each metadata column."""
    with torch.device("meta"):
        model = AssayClassifier(_exported_config(network, config, types))
    model.encoder, model.metadata, model.head = network.encoder, network.metadata, network.head
    hf_logging.disable_progress_bar()
    model.save_pretrained(folder)
    source = Path(__file__).with_name(MODULE_FILE)
    (folder / MODULE_FILE).write_bytes(source.read_bytes())


def load_exported(folder: Path) -> ClassifierNetwork:
    """Load an exported classifier with our own copy of its code: no code of the folder is run."""
    model = load_pretrained(_CLASSIFIER, folder, use_safetensors=True)
    return ClassifierNetwork.of_parts(model.encoder, model.metadata, model.head)


def _exported_config(
    network: ClassifierNetwork, config: ClassifyConfig, types: Mapping[str, str]
) -> AssayClassifierConfig:
    kinds = {name: "number" if name in config.numeric_columns else "category" for name in config.metadata_columns}
    buckets = {"number": NUMERIC_BUCKETS, "category": config.category_buckets + 1}
    module = MODULE_FILE.removesuffix(".py")
    return AssayClassifierConfig(
        encoder={key: value for key, value in network.encoder.config.to_dict().items() if key != _PATH_KEY},
        metadata=[
            {"name": name, "kind": kind, "buckets": buckets[kind], "type": types[name]} for name, kind in kinds.items()
        ],
        **_labels(config.label),
        architectures=[AssayClassifier.__name__],
        auto_map={
            "AutoConfig": f"{module}.{AssayClassifierConfig.__name__}",
            "AutoModelForSequenceClassification": f"{module}.{AssayClassifier.__name__}",
        },
    )


def _labels(label: BinaryLabel | ClassesLabel | NumberLabel) -> dict[str, Any]:
    """Return transformers' description of the logits, which its pipelines use."""
    if isinstance(label, ClassesLabel):
        names, problem = list(label.names), "single_label_classification"
    elif isinstance(label, NumberLabel):
        names, problem = [label.unit or "number"], "regression"
    else:  # one logit is the log-odds of label 1, so the pipeline must apply a sigmoid
        names, problem = [label.positive or "1"], "multi_label_classification"
    number = {"label_mean": label.mean, "label_scale": label.scale} if isinstance(label, NumberLabel) else {}
    return {
        "num_labels": len(names),
        "id2label": dict(enumerate(names)),
        "label2id": {name: index for index, name in enumerate(names)},
        "problem_type": problem,
        **number,
    }
