"""The document of a step's rollouts, beside those of another step on the same prompts."""

from collections.abc import Iterator, Sequence

from assay.base.units import number_of
from assay.reporting.document import (
    Block,
    Code,
    Column,
    Commands,
    Document,
    Fact,
    Paragraph,
    Section,
    Table,
    TitledTable,
    name,
    number,
)
from assay.reporting.views.runs.samples import CompletionView, StepRollouts

OUTCOME_WORDS = {"zero_std": "without spread"}
"""Outcomes of prompts that are shown in the words of the run's page."""
MAX_PROMPTS = 10
"""Prompts of a page whose completions are shown."""


def rollouts_document(
    later: StepRollouts,
    earlier: StepRollouts | None = None,
    *,
    first_prompt: int = 0,
    links: Sequence[tuple[str, str]] = (),
) -> Document:
    """Return the rollouts of one step, or of two steps side by side on the prompts that both have.

    `first_prompt`: index of the first prompt that is shown."""
    steps = [earlier, later] if earlier else [later]
    common = [row for row in _rows(later) if earlier is None or row in _rows(earlier)]
    shown = common[first_prompt : first_prompt + MAX_PROMPTS]
    sections = [Section(f"Prompt of row {row:,}", list(_prompt(row, steps))) for row in shown]
    if earlier is not None and not common:
        text = (
            f"No prompt was sampled at step {earlier.step:,} and at step {later.step:,}: each step has its own below."
        )
        sections = [Section("", [Paragraph(text)])]
        sections += [
            Section(f"Step {item.step:,}, row {row:,}", list(_prompt(row, [item])))
            for item in steps
            for row in _rows(item)[:3]
        ]
    titles = " beside ".join(f"step {item.step:,}" for item in steps)
    arguments = f"--step {later.step}{f' --against {earlier.step}' if earlier else ''}"
    return Document(
        title=f"Rollouts of {later.run_id}, {titles}",
        kind="rollouts",
        subtitle=f"rollout logs of steps {later.first_step:,} to {later.last_step:,}",
        tiles=[fact for item in steps for fact in _facts(item)],
        sections=sections,
        footer=f"The same as JSON: assay runs rollouts {later.run_id} {arguments} --json",
        links=links,
    )


def _rows(item: StepRollouts) -> list[int]:
    """Return the rows of a step's prompts; those with texts first."""
    readable = [completion.row_id for completion in item.completions if completion.completion is not None]
    return list(dict.fromkeys([*readable, *(completion.row_id for completion in item.completions)]))


def _facts(item: StepRollouts) -> Iterator[Fact]:
    prompts = ", ".join(f"{count:,} {OUTCOME_WORDS.get(outcome, outcome)}" for outcome, count in item.outcomes.items())
    reward = "—" if item.mean_reward is None else f"{item.mean_reward:.4f}"
    yield Fact(f"mean reward, step {item.step:,}", reward, f"{number_of(len(item.completions), 'completion')}")
    yield Fact(f"prompts, step {item.step:,}", f"{sum(item.outcomes.values()):,}", prompts)
    yield Fact(f"mean length, step {item.step:,}", f"{item.mean_tokens:,.0f} tokens", f"{item.num_cut:,} cut")


def _prompt(row: int, steps: Sequence[StepRollouts]) -> Iterator[Block]:
    of_step = [_best_first(item, row) for item in steps]
    prompt = next((one.prompt for found in of_step for one in found), None)
    yield Code(prompt) if prompt is not None else Paragraph("The prompt's dataset or tokenizer is not on this machine.")
    readable = [[one for one in found if one.completion is not None] for found in of_step]
    if any(readable):
        texts = [tuple(_text(found, at) for found in readable) for at in range(max(map(len, readable)))]
        rows = [(f"completion {at}", *line) for at, line in enumerate(texts, 1)]
        header: list[str | Column] = [number("best first"), *(f"step {item.step:,}" for item in steps)]
        yield TitledTable("", "", Table(header, rows))
    else:
        yield Paragraph("The log has no tokens of these completions. Each can be generated again, bit for bit:")
    yield TitledTable.of(
        "",
        "Rewards of all completions of this prompt",
        [one for found in of_step for one in found],
        (number("step"), lambda one: f"{one.step:,}"),
        (number("completion"), lambda one: str(one.sample)),
        (number("reward"), lambda one: score_text(one.reward)),
        (number("advantage"), lambda one: score_text(one.advantage)),
        (number("tokens"), tokens_text),
        (name("by grader"), scores_text),
    )
    first = of_step[-1][0] if of_step[-1] else None
    if first is not None:
        again = f"assay runs rollout {steps[-1].run_id} --step {first.step} --row {row} --sample {first.sample}"
        yield Commands([("generate one again and compare each bit", again)])


def _best_first(item: StepRollouts, row: int) -> list[CompletionView]:
    found = [one for one in item.completions if one.row_id == row]
    return sorted(found, key=lambda one: (one.reward is None, -(one.reward or 0.0), one.sample))


def _text(found: Sequence[CompletionView], at: int) -> str:
    if at >= len(found):
        return ""
    one = found[at]
    return f"reward {score_text(one.reward)}{', cut' if one.is_cut else ''}\n{one.completion}"


def scores_text(one: CompletionView) -> str:
    """Return the score by each grader."""
    return ", ".join(f"{grader} {score_text(score)}" for grader, score in one.scores.items())


def score_text(value: float | None) -> str:
    """Return a reward or score; a dash if a grader failed."""
    return "—" if value is None else f"{value:.4g}"


def tokens_text(one: CompletionView) -> str:
    """Return the length of a completion, and whether it reached the limit."""
    return f"{one.num_tokens:,}{', cut' if one.is_cut else ''}"
