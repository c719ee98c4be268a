"""A task that can be learned from rewards in minutes on two cores: five digits, to be put in order.

    python recipes/rl/digits.py shown > shown.jsonl
    assay data build shown.jsonl --format chat --tokenizer new:300 --out datasets/digits-shown
    assay train recipes/rl/warm_up.yaml --run-id digits-warm-up
    assay runs export digits-warm-up --out models/digits-warm-up

    python recipes/rl/digits.py asked > asked.jsonl
    assay data build asked.jsonl --format prompts --tokenizer models/digits-warm-up --out datasets/digits-asked
    assay train recipes/rl/grpo.yaml --workers 2

`recipes/pipeline` trains both, and DPO in between, with one command.

`shown` has the answers, to be imitated until some that the model writes are right; `asked` has prompts, and
beside each the `answer` that its grader reads. Their rows are drawn apart: what is asked was seldom shown.
`paired` has a right answer and one with two digits exchanged; `tested` is for a suite. A digit is a token of
its own, however many tokens are learned, for blanks part them.
"""

import json
import random
import sys
from collections.abc import Iterator

NUM_DIGITS = 5
ROWS = {"shown": 12_000, "asked": 11_000, "paired": 4_000, "tested": 300}
ANSWER = {"shown": "completion", "asked": "answer", "paired": "chosen", "tested": "answer"}


def rows(which: str) -> Iterator[dict[str, str]]:
    """Each prompt once."""
    draw, seen = random.Random(which), set[str]()
    while len(seen) < ROWS[which]:
        digits = [str(draw.randrange(10)) for _ in range(NUM_DIGITS)]
        prompt, answer = f"sort {' '.join(digits)} =", f" {' '.join(sorted(digits))}"
        if prompt not in seen:
            seen.add(prompt)
            row = {"prompt": prompt, ANSWER[which]: answer}
            yield {**row, "rejected": _exchanged(draw, answer)} if which == "paired" else row


def _exchanged(draw: random.Random, answer: str) -> str:
    """With two neighbours that differ in the place of one another; else with a digit more."""
    digits = answer.split()
    places = [place for place in range(NUM_DIGITS - 1) if digits[place] != digits[place + 1]]
    if not places:
        return f"{answer} {digits[0]}"
    place = draw.choice(places)
    digits[place : place + 2] = digits[place + 1], digits[place]
    return f" {' '.join(digits)}"


if __name__ == "__main__":
    if sys.argv[1:] not in ([name] for name in ROWS):
        sys.exit(f"{sys.argv[0]} {' | '.join(ROWS)}")
    for row in rows(sys.argv[1]):
        sys.stdout.write(json.dumps(row) + "\n")
