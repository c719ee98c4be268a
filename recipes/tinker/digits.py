"""A training loop of your own, over the Tinker API: five digits, to be put in order, by imitation and then by rewards.

`recipes/rl/digits.py` says how its `shown` rows make the model `models/digits-warm-up`. Beside that folder,
`models/digits.yaml` offers it as a base model:

    tokenizer: digits-warm-up
    methods:
      supervised:
        max_tokens: 64
        recipe:
          loader: {lanes: 8, global_batch_size: 64}
          method: {type: sft, train_on: spans, model: {type: pretrained, path: digits-warm-up}}

Then run server and worker in two terminals, and the loop in a third:

    assay serve --models models
    assay serve sessions
    python recipes/tinker/digits.py http://127.0.0.1:8017 digits

Server and worker may be killed and started again while it runs: the figures stay the same.
"""

import argparse
import random
from pathlib import Path

import tinker
from tinker import types
from tokenizers import Tokenizer

NUM_DIGITS = 5
IMITATED = 64
"""Rows of an imitation step."""
PROMPTS, ANSWERS = 16, 8
"""Prompts of a policy step, and answers to each."""


def row(draw: random.Random) -> tuple[str, str]:
    """Return a prompt and its answer, which ends with a line."""
    digits = [str(draw.randrange(10)) for _ in range(NUM_DIGITS)]
    return f"sort {' '.join(digits)} =", f" {' '.join(sorted(digits))}\n"


def datum(prompt: list[int], answer: list[int], **of_answer: list[float]) -> types.Datum:
    """Return a sequence with a number for each token of the answer, and zeros for the prompt."""
    tokens, zeros = prompt + answer, [0.0] * (len(prompt) - 1)
    inputs = {name: zeros + values for name, values in of_answer.items()}
    return types.Datum(
        model_input=types.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={"target_tokens": tokens[1:], **inputs},
    )


def update(client: tinker.TrainingClient, data: list[types.Datum], loss: str, learning_rate: float) -> float:
    """Train one step; return the loss."""
    passed = client.forward_backward(data, loss)
    updated = client.optim_step(types.AdamParams(learning_rate=learning_rate))
    updated.result()
    return float(passed.result().metrics["loss:sum"])


def imitate(client: tinker.TrainingClient, tokenizer: Tokenizer, draw: random.Random) -> float:
    """Learn answers that are shown; return the mean loss of a token."""
    encoded = [[tokenizer.encode(text, add_special_tokens=False).ids for text in row(draw)] for _ in range(IMITATED)]
    weight = 1 / sum(len(answer) for _, answer in encoded)
    data = [datum(prompt, answer, weights=[weight] * len(answer)) for prompt, answer in encoded]
    return update(client, data, "cross_entropy", 2e-3)


def reinforce(client: tinker.TrainingClient, tokenizer: Tokenizer, draw: random.Random, seed: int) -> float:
    """Sample answers, and make the better ones of each prompt more probable; return the mean reward."""
    sampler = client.save_weights_and_get_sampling_client().result()
    settings = types.SamplingParams(max_tokens=16, temperature=1.0, seed=seed, stop=["\n"])
    asked = [row(draw) for _ in range(PROMPTS)]
    prompts = [tokenizer.encode(prompt, add_special_tokens=False).ids for prompt, _ in asked]
    sampled = [
        sampler.sample(types.ModelInput.from_ints(prompt), num_samples=ANSWERS, sampling_params=settings)
        for prompt in prompts
    ]
    data, total = [], 0.0
    for (_, expected), prompt, future in zip(asked, prompts, sampled, strict=True):
        sequences = future.result().sequences
        rewards = [float(tokenizer.decode(item.tokens).strip() == expected.strip()) for item in sequences]
        mean = sum(rewards) / ANSWERS
        total += sum(rewards)
        for item, reward in zip(sequences, rewards, strict=True):
            advantages = [(reward - mean) / (PROMPTS * ANSWERS)] * len(item.tokens)
            data.append(datum(prompt, list(item.tokens), logprobs=list(item.logprobs or []), advantages=advantages))
    update(client, data, "importance_sampling", 2e-3)
    return total / (PROMPTS * ANSWERS)


def main() -> None:
    """Imitate, learn from rewards, and save the state."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("base", help="name of the base model")
    parser.add_argument("--key", default="tml-any", help="tml- and a key of the server")
    parser.add_argument("--imitation-steps", type=int, default=60)
    parser.add_argument("--policy-steps", type=int, default=60)
    options = parser.parse_args()
    service = tinker.ServiceClient(base_url=options.url, api_key=options.key)
    client = service.create_lora_training_client(options.base, rank=16, seed=7).result()
    path = Path(str(client.get_info().model_data.tokenizer_id))
    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json" if path.is_dir() else path))
    draw = random.Random(0)
    for step in range(options.imitation_steps):
        print(f"imitation {step}: loss {imitate(client, tokenizer, draw):.4f}", flush=True)
    for step in range(options.policy_steps):
        print(f"policy {step}: reward {reinforce(client, tokenizer, draw, seed=step):.4f}", flush=True)
    print(client.save_state("sorted").result().path)
    service.close("success").result()


if __name__ == "__main__":
    main()
