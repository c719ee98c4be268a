"""A tokenizer of bytes and the special tokens that chats and texts have."""

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

END, START, CLOSE, BOS, EOS = range(5)
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<s>", "</s>")


def write_tokenizer(folder: Path, template: str | None = None, **named: str | None) -> Path:
    """Bytes and special tokens; puts `<s>` and `</s>` around each text where they are named."""
    vocabulary = {text: number for number, text in enumerate(SPECIAL)}
    vocabulary |= {text: number for number, text in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()), 5)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    around = [named.get("bos_token"), "$A", "</s>" if named.get("eos_token") == "</s>" else None]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=" ".join(filter(None, around)), special_tokens=[("<s>", BOS), ("</s>", EOS)]
    )
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": SPECIAL[END], **named}))
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return folder
