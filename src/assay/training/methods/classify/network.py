"""The classifier's network: the mean of the encoder's states plus an embedding of each metadata value.

Bucket 0 of each metadata column means *missing*, so the model can learn from missing values.
"""

from typing import Any, Self

from torch import Tensor, nn
from transformers.models.bert.configuration_bert import BertConfig
from transformers.models.bert.modeling_bert import BertModel

from assay.base.shapes import Bool, Float, Int
from assay.models.config import NewEncoderConfig, PretrainedEncoderConfig, checkpoint_path
from assay.models.pretrained import ENCODER, load_config, load_pretrained
from assay.training.methods.classify.config import NUMERIC_BUCKETS, ClassifyConfig


class ClassifierNetwork(nn.Module):
    """Maps tokens and metadata buckets to one output a row, or one for each class."""

    def __init__(self, config: ClassifyConfig) -> None:
        super().__init__()
        self.encoder: Any = build_encoder(config.encoder)
        width = self.encoder.config.hidden_size
        sizes = [config.category_buckets + 1] * len(config.categorical_columns)
        sizes += [NUMERIC_BUCKETS] * len(config.numeric_columns)
        self.metadata = nn.ModuleList(nn.Embedding(size, width) for size in sizes)
        for embedding in self.metadata:
            nn.init.normal_(embedding.weight, std=0.02)  # type: ignore[arg-type]
        self.head = nn.Sequential(
            nn.Linear(width, width),
            nn.GELU(),
            nn.Dropout(config.head_dropout),
            nn.Linear(width, config.label.num_outputs),
        )

    @classmethod
    def of_parts(cls, encoder: Any, metadata: nn.ModuleList, head: nn.Sequential) -> Self:
        """Build the network from modules that have their weights."""
        network = cls.__new__(cls)
        nn.Module.__init__(network)
        network.encoder, network.metadata, network.head = encoder, metadata, head
        return network

    def forward(
        self,
        input_ids: Int[Tensor, "row token"],
        lengths: Int[Tensor, "row"],
        metadata_buckets: Int[Tensor, "row column"],
        attention_mask: Bool[Tensor, "row token"] | None = None,
    ) -> Float[Tensor, "row ..."]:
        """Return float32 outputs, [row] or [row, class]. Without `attention_mask`, rows are not padded: the
        fastest path."""
        pooled = self.pooled(input_ids, lengths, attention_mask)
        for column, embedding in enumerate(self.metadata):
            pooled = pooled + embedding(metadata_buckets[:, column])
        outputs: Tensor = self.head(pooled)
        return outputs.squeeze(-1).float()

    def pooled(
        self,
        input_ids: Int[Tensor, "row token"],
        lengths: Int[Tensor, "row"],
        attention_mask: Bool[Tensor, "row token"] | None = None,
    ) -> Float[Tensor, "row width"]:
        """Return the mean of each row's states."""
        states: Tensor = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        if attention_mask is not None:
            states = states * attention_mask[:, :, None]
        return states.sum(dim=1) / lengths[:, None]


def build_encoder(config: NewEncoderConfig | PretrainedEncoderConfig) -> Any:
    """Return the Hugging Face model: `input_ids, attention_mask, position_ids -> last_hidden_state`."""
    if isinstance(config, PretrainedEncoderConfig):
        return _pretrained(config)
    return BertModel(
        BertConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads,
            intermediate_size=config.intermediate_size,
            max_position_embeddings=config.max_tokens,
            hidden_dropout_prob=config.dropout,
            attention_probs_dropout_prob=config.attention_dropout,
            attn_implementation="sdpa",
        ),
        add_pooling_layer=False,
    )


def _pretrained(config: PretrainedEncoderConfig) -> Any:
    folder = checkpoint_path(config.path)
    architecture = load_config(folder, ENCODER)
    if config.dropout is not None:
        for name, value in architecture.to_dict().items():
            if "dropout" in name and isinstance(value, float):
                setattr(architecture, name, config.dropout)
    model = load_pretrained(ENCODER, folder, config=architecture, attn_implementation="sdpa")
    # A pooling layer that the loss does not use would have no gradient.
    if getattr(model, "pooler", None) is not None:
        model.pooler = None
    return model
