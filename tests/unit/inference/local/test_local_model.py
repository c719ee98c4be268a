"""What a language model of this process says of texts."""

import math

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers

from assay.base.errors import ConfigError, DataError
from assay.data.dataset.formats.template import ChatTemplate
from assay.inference.local.local_model import LocalModel
from assay.inference.protocol import Message, SamplingParams
from assay.models.causal import CausalModel, load_causal
from tiny_causal import save_causal

TEXT = "def close(self):\n    return 1  # schließen ✓\n"


def plain_bits(causal: CausalModel, ids: list[int], *, inputs: int) -> float:
    """Of the last token, by one plain forward pass over everything before it."""
    with torch.inference_mode():
        logits = causal.network(input_ids=torch.tensor([ids[-1 - inputs : -1]])).logits[0, -1]
    return -torch.log_softmax(logits.double(), -1)[ids[-1]].item() / math.log(2)


def test_a_short_texts_bits_are_those_of_the_chain_rule(tiny_causal, tiny_model):
    found = tiny_model.text_bits("return a")
    ids = [1, *tiny_causal.tokenizer.encode("return a", add_special_tokens=False).ids]
    expected = [plain_bits(tiny_causal, ids[: k + 1], inputs=k) for k in range(1, len(ids))]
    np.testing.assert_allclose(found.bits, expected, rtol=1e-4)
    assert found.num_bytes == 8


def test_every_token_of_a_long_text_is_predicted_from_half_a_window_at_least(tiny_causal, tiny_model):
    text = TEXT * 4
    ids = [1, *tiny_causal.tokenizer.encode(text, add_special_tokens=False).ids]
    found = tiny_model.text_bits(text)
    assert len(found.bits) == len(ids) - 1
    for position, bits in enumerate(found.bits.tolist(), start=1):
        candidates = [
            plain_bits(tiny_causal, ids[: position + 1], inputs=n)
            for n in range(min(position, 8), min(position, 15) + 1)
        ]
        assert min(abs(bits - candidate) for candidate in candidates) < 1e-3


def test_tokens_start_at_their_bytes(tiny_model):
    found = tiny_model.text_bits(TEXT)
    assert found.starts[0] == 0
    assert (np.diff(found.starts) >= 0).all()
    assert found.starts[-1] < found.num_bytes == len(TEXT.encode())


def test_control_tokens_in_texts_and_messages_are_text(tiny_causal, tiny_model):
    text = "return [PAD][CLS] a"
    special = {tiny_causal.tokenizer.token_to_id(token) for token in ("[PAD]", "[CLS]")}
    written, ids = tiny_model.conversation([Message(role="user", content=text)])
    assert text in written and not special & set(ids[1:])
    assert tiny_causal.tokenizer.decode(ids[1:], skip_special_tokens=False) == written
    found = tiny_model.text_bits(text)
    assert found.num_bytes == len(text) and found.starts[-1] < len(text)
    assert len(found.bits) == len(tiny_model.tokens_of(text)) - 1


def test_a_smaller_window_costs_no_fewer_tokens(tiny_model):
    wide, narrow = tiny_model.text_bits(TEXT * 3), tiny_model.text_bits(TEXT * 3, window_tokens=4)
    assert len(wide.bits) == len(narrow.bits)
    assert not np.allclose(wide.bits, narrow.bits)


def test_a_tokenizer_that_loses_something_gives_no_bits_per_byte(tiny_causal):
    lossy = Tokenizer(models.WordLevel({"[UNK]": 0, "def": 1}, unk_token="[UNK]"))
    lossy.pre_tokenizer = pre_tokenizers.Whitespace()
    with pytest.raises(ConfigError, match="does not reproduce this text"):
        LocalModel(CausalModel(tiny_causal.network, lossy, 16), name="x").text_bits("def   f")


def test_a_continuations_bits_take_over_the_prompts_trailing_space(tiny_model):
    assert tiny_model.continuation_bits("return ", "a") == tiny_model.continuation_bits("return", " a")


def test_the_likeliest_token_is_sampled_and_a_seed_repeats_a_draw(tiny_model):
    prompt = [[{"role": "user", "content": "def"}]]
    greedy = SamplingParams(max_tokens=6)
    assert tiny_model.generate(prompt, greedy) == tiny_model.generate(prompt, greedy)
    sampled = [
        tiny_model.generate(prompt, SamplingParams(max_tokens=6, temperature=1.0, seed=seed))[0] for seed in (1, 1, 2)
    ]
    assert sampled[0] == sampled[1] != sampled[2]
    assert sampled[0].completion_tokens <= 6


def test_a_draw_does_not_depend_on_what_else_is_asked(tiny_model):
    one, other = [{"role": "user", "content": "def"}], [{"role": "user", "content": "class"}]
    sampling = SamplingParams(max_tokens=5, temperature=1.0, seed=3)
    assert tiny_model.generate([other, one], sampling)[1] == tiny_model.generate([one], sampling)[0]


def test_a_tiny_top_p_is_greedy(tiny_model):
    prompt = [[{"role": "user", "content": "class"}]]
    nearly = SamplingParams(max_tokens=5, temperature=1.0, top_p=1e-6, seed=5)
    assert (
        tiny_model.generate(prompt, nearly)[0].text == tiny_model.generate(prompt, SamplingParams(max_tokens=5))[0].text
    )


def test_a_completion_ends_before_its_stop_text(tiny_model):
    prompt = [[{"role": "user", "content": "def"}]]
    whole = tiny_model.generate(prompt, SamplingParams(max_tokens=6))[0].text
    stopped = tiny_model.generate(prompt, SamplingParams(max_tokens=6, stop=(whole[2:4],)))[0]
    assert stopped.text == whole[: whole.find(whole[2:4])]
    assert stopped.finish_reason == "stop"


def test_a_completion_that_leaves_no_room_for_a_prompt_is_refused(tiny_model):
    requested = [[Message(role="user", content="def")]]
    with pytest.raises(
        ConfigError, match=r"may have 16 tokens \(sampling\.max_tokens\), but the model.s context of 16"
    ):
        tiny_model.generate(requested, SamplingParams(max_tokens=16))
    (completion,) = tiny_model.generate(requested, SamplingParams(max_tokens=15))
    assert completion.prompt_tokens == 1


def test_a_saved_checkpoint_says_what_it_said(tiny_causal, tiny_model, tmp_path):
    save_causal(tmp_path, tiny_causal.network, tiny_causal.tokenizer)
    loaded = LocalModel(load_causal(str(tmp_path)), name="loaded")
    np.testing.assert_array_equal(loaded.text_bits(TEXT).bits, tiny_model.text_bits(TEXT).bits)


def test_a_folder_without_a_model_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"has no config\.json"):
        load_causal(str(tmp_path))


def test_a_conversation_of_which_the_template_leaves_out_a_message_is_refused(tiny_causal):
    source = "{% for m in messages if m.role != 'system' %}{{ m.content }}{% endfor %}"
    model = LocalModel(tiny_causal, name="tiny", template=ChatTemplate(source, {}, where="mine"))
    requested = Message(role="user", content="return a")
    assert model.conversation([requested])[0] == "return a"
    with pytest.raises(DataError, match=r"message 1: the chat template \(mine\) leaves out.* 'Be brief.'"):
        model.conversation([Message(role="system", content="Be brief."), requested])
