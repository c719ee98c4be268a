"""The classifier as other tools load it: this file lies beside exported weights, and needs no assay.

    model = AutoModelForSequenceClassification.from_pretrained(FOLDER, trust_remote_code=True).eval()
    tokenizer = AutoTokenizer.from_pretrained(FOLDER, trust_remote_code=True)
    tokens = tokenizer(texts, padding=True, truncation=True, return_tensors="pt")
    logits = model(**tokens, metadata_buckets=model.buckets_of(rows)).logits

transformers has no class of this shape: the mean of an encoder's states, plus an embedding of each metadata
value, through a head of two layers. The encoder is one of its own.
"""

import math
from decimal import Decimal
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import AutoConfig, AutoModel, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput

try:
    import xxhash  # only for columns of names
except ImportError:
    xxhash = None  # type: ignore[assignment]


class AssayClassifierConfig(PretrainedConfig):  # type: ignore[misc]
    """Configuration of the encoder and of the metadata."""

    model_type = "assay_classifier"

    def __init__(
        self, encoder: Any = None, metadata: Any = (), label_mean: float = 0.0, label_scale: float = 1.0, **others: Any
    ) -> None:
        """`metadata`: for each column a mapping with `name`, `kind` (`category`, `number`), `buckets` and the
        Arrow `type` of training. A number that is predicted is logit * `label_scale` + `label_mean`."""
        self.encoder = encoder
        self.metadata = [dict(column) for column in metadata]
        self.label_mean, self.label_scale = label_mean, label_scale
        super().__init__(**others)


class AssayClassifier(PreTrainedModel):  # type: ignore[misc]
    """Maps tokens and metadata buckets to a logit, or one for each class."""

    config_class = AssayClassifierConfig
    base_model_prefix = "encoder"
    _supports_sdpa = True

    def __init__(self, config: AssayClassifierConfig) -> None:
        super().__init__(config)
        encoder = AutoConfig.for_model(**config.encoder)
        self.encoder = AutoModel.from_config(encoder, attn_implementation="sdpa")
        if getattr(self.encoder, "pooler", None) is not None:
            self.encoder.pooler = None
        width = encoder.hidden_size
        self.metadata = nn.ModuleList(nn.Embedding(column["buckets"], width) for column in config.metadata)
        self.head = nn.Sequential(
            nn.Linear(width, width), nn.GELU(), nn.Dropout(0.0), nn.Linear(width, config.num_labels)
        )
        self.post_init()

    def forward(
        self, input_ids: Any, attention_mask: Any = None, metadata_buckets: Any = None, **_: Any
    ) -> SequenceClassifierOutput:
        """`input_ids`, `attention_mask` [row, token]; `metadata_buckets` [row, column], where none is given all
        are missing. Logits [row, label] in float32."""
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        states = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        states = states * attention_mask[:, :, None]
        pooled = states.sum(dim=1) / attention_mask.sum(dim=1)[:, None]
        if metadata_buckets is None:
            metadata_buckets = input_ids.new_zeros(len(input_ids), len(self.metadata))
        for column, embedding in enumerate(self.metadata):
            pooled = pooled + embedding(metadata_buckets[:, column].to(pooled.device))
        return SequenceClassifierOutput(logits=self.head(pooled).float())

    def buckets_of(self, rows: Any) -> Any:
        """Return `metadata_buckets` [row, column] of rows (mappings by column).

        None and NaN are missing values. Raises `ValueError` for a row without a column, because a misspelled
        name would go unnoticed.
        """
        columns = self.config.metadata
        buckets = []
        for index, row in enumerate(rows):
            if absent := [column["name"] for column in columns if column["name"] not in row]:
                raise ValueError(
                    f"row {index}: no column '{absent[0]}', which the model needs; it has "
                    f"{', '.join(map(str, row)) or 'none'}. Give it, or None where it is not known"
                )
            buckets.append([bucket_of(row[column["name"]], column) for column in columns])
        return torch.tensor(buckets, dtype=torch.long).reshape(len(buckets), len(columns))


def bucket_of(value: Any, column: Any) -> int:
    """Return the embedding index of a value; 0 if it is missing."""
    if value is None:
        return 0
    if column["kind"] == "number":
        number = float(value)
        if math.isnan(number):
            return 0
        return (1 if number < 0 else 65) + int(min(4 * math.log2(abs(number) + 1), 63))
    if xxhash is None:
        raise ImportError(f"column '{column['name']}' is hashed by xxhash: pip install xxhash")
    return 1 + xxhash.xxh3_64_intdigest(_value_text(value, column).encode()) % int(column["buckets"] - 1)


def _value_text(value: Any, column: Any) -> str:
    """Return the value as Arrow formatted it in training: another format would be another bucket.

    Raises `ValueError` if the column's type cannot hold it.
    """
    kind = str(column.get("type", "string"))
    try:
        if kind == "bool":
            return _TRUTHS[str(value).lower()]
        if kind.startswith(("int", "uint")):
            whole = int(value)
            if isinstance(value, str) or whole == value:
                return str(whole)
        elif kind in _FLOATS:
            return _shortest(str(_FLOATS[kind](value)))
        elif isinstance(value, str) or kind in ("string", "large_string", "date32[day]"):
            return str(value).lower() if isinstance(value, bool) else str(value)
    except (KeyError, ValueError, OverflowError, TypeError):
        pass
    raise ValueError(
        f"column '{column['name']}' is {value!r:.40}, and in training it was {kind}: give such a value (of "
        "a type that Python formats differently, its text), or None where it is not known"
    )


_TRUTHS = {"true": "true", "1": "true", "false": "false", "0": "false"}
_FLOATS = {"halffloat": np.float16, "float": np.float32, "double": np.float64}


def _shortest(text: str) -> str:
    """Return a float's digits in Arrow's format: without an exponent from 1e-6 to below 1e10."""
    number = Decimal(text)
    if not number.is_finite():
        return text
    exponent = number.adjusted() if number else 0
    if -7 < exponent < 10:
        return format(number.normalize(), "f")
    digits = "".join(map(str, number.normalize().as_tuple().digits))
    rest = f".{digits[1:]}" if digits[1:] else ""
    return f"{'-' if number < 0 else ''}{digits[0]}{rest}e{exponent:+d}"
