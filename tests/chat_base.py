"""Folders of tiny base models that chats can be taught to, with tokenizers of many kinds."""

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

SPECIAL = ("<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>")
END, TURN_END = SPECIAL.index("</s>"), SPECIAL.index("<|im_end|>")
VOCABULARY = 400
WORDS = ("fox", "100 dogs", "Città.", "no  way 2024")


def save_tokenizer(
    folder: Path,
    *,
    post: str | None = None,
    pre: Any = None,
    normalizer: Any = None,
    eos: str = "</s>",
    vocab_size: int = VOCABULARY,
) -> Tokenizer:
    """A byte-level BPE; `post` is what it puts around a text, e.g. `<s> $A`."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre or pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL),
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    texts = [f"say {response} assistant user {number} {response}" for number in range(20) for response in WORDS]
    tokenizer.train_from_iterator(texts, trainer)
    if post is not None:
        special = [("<s>", SPECIAL.index("<s>")), ("</s>", END)]
        tokenizer.post_processor = processors.TemplateProcessing(single=post, pair=f"{post} $B", special_tokens=special)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"eos_token": eos, "bos_token": "<s>", "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return tokenizer


def save_base(folder: Path, eos: int | list[int] | None, *, architecture: str = "llama", **sizes: int) -> None:
    """Weights and configuration of a model that has seen none of the rows."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    config = AutoConfig.for_model(
        architecture,
        max_position_embeddings=128,
        bos_token_id=3,
        eos_token_id=eos,
        pad_token_id=None,
        **{"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 1, **sizes},
        num_attention_heads=2,
        num_key_value_heads=2,
        intermediate_size=64,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)


def chat_lines(num_rows: int = 8) -> list[dict[str, Any]]:
    """Conversations of one turn, which a tiny model learns by heart; `n` is their key."""
    return [
        {
            "messages": [
                {"role": "user", "content": f"say {number}"},
                {"role": "assistant", "content": WORDS[number % len(WORDS)]},
            ],
            "n": number,
        }
        for number in range(num_rows)
    ]
