"""A training by TRL's SFTTrainer that goes on from its last checkpoint: `python recorded_sft.py FOLDER`."""

import os
import signal
import sys
from pathlib import Path

import torch
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, TrainerCallback
from trl import SFTConfig, SFTTrainer

from assay.integrations.transformers import AssayCallback


class Kill(TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        if state.global_step == int(os.environ.get("KILL_AT", "0")):
            os.kill(os.getpid(), signal.SIGKILL)


def main(out):
    torch.manual_seed(0)
    words = ["<pad>", "<eos>", *(f"w{number}" for number in range(30))]
    model = WordLevel({word: index for index, word in enumerate(words)}, unk_token="<pad>")
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = Whitespace()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>")
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    network = LlamaForCausalLM(LlamaConfig(vocab_size=len(words), max_position_embeddings=64, **sizes))
    rows = Dataset.from_list([{"text": " ".join(f"w{(row + i) % 30}" for i in range(12))} for row in range(48)])
    arguments = SFTConfig(
        str(out), max_steps=12, per_device_train_batch_size=4, save_steps=3, logging_steps=1, report_to=[],
        disable_tqdm=True, use_cpu=True, bf16=False,
    )  # fmt: skip
    trainer = SFTTrainer(network, arguments, train_dataset=rows, processing_class=fast)
    trainer.add_callback(AssayCallback("words/first"))
    trainer.add_callback(Kill())
    trainer.train(resume_from_checkpoint=any(out.glob("checkpoint-*")))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
