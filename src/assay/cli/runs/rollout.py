"""`assay runs rollout`: replay one rollout of a past step."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from assay.cli.parameters import RUN, current_home, json_option, ledger_with_runs

if TYPE_CHECKING:
    from assay.records.replay import RolloutReport


@click.command()
@click.argument("run_id", metavar="RUN", type=RUN)
@click.option("--step", required=True, type=int, help="Step that trained on the rollout (the first is 1).")
@click.option("--row", required=True, type=int, help="Dataset row of the prompt.")
@click.option("--sample", type=int, default=0, help="Index of the completion in its group, from 0.")
@json_option
def rollout(run_id: str, step: int, row: int, sample: int, as_json: bool) -> None:
    """Sample one rollout of a GRPO RUN again, alone, and compare every bit with the one that the run trained
    on.

    Starts from the nearest commit before the step, on one process, whatever the world size of the run was.
    Prints the prompt, the completion, its reward, and why it was or was not used for training. Exit code 1 if a
    bit differs.
    """
    from assay.store.metrics.recorded import recorded_steps
    from assay.training.recipe import recipe_of
    from assay.training.replay.request import RolloutRequest
    from assay.workflows.run import load_run

    run = load_run(current_home(), run_id)
    recipe, request = recipe_of(run), RolloutRequest(step, row, sample)
    request.check(
        run,
        recipe.trainer,
        recipe.method,
        num_lanes=recipe.loader.lanes,
        last_step=run.num_steps,
        steps=recorded_steps(Path(run.run_dir)),
    )

    from assay.elastic.processor import other_processor
    from assay.store.commit_log import CommitLog
    from assay.store.objects import open_store
    from assay.workflows.rollout import rollout_again

    if (logprobs := other_processor(run, step, attempt=None)) is not None:
        click.secho(logprobs, err=True, fg="yellow")
    log = CommitLog(open_store(run.store_url))
    report = rollout_again(run, log, request, progress=_progress)
    click.echo(report.to_json() if as_json else _text(report))
    sys.exit(1 if report.verdict == "differs" else 0)


def _progress(step: int, first: int, last: int) -> None:
    if sys.stderr.isatty():
        click.echo(f"\rreplaying step {step} of {first} to {last}", err=True, nl=step == last)


@click.command()
@click.argument("run_id", metavar="RUN", type=RUN)
@click.option("--step", type=int, help="Step that trained on the completions; by default the last one.")
@click.option("--against", type=int, help="Show the completions of this step, too, on the prompts that both have.")
@json_option
def rollouts(run_id: str, step: int | None, against: int | None, as_json: bool) -> None:
    """Read the completions of a step of an RL RUN with their rewards.

    The rollout log keeps the texts of the best and the worst completion of each step's first prompt, and those that
    cannot be generated again here; 'assay runs rollout' generates the others again.
    """
    from assay.reporting.documents.runs.rollouts import rollouts_document
    from assay.reporting.terminal.document import print_document
    from assay.reporting.views.runs.samples import step_rollouts
    from assay.reporting.views.view import json_list

    with ledger_with_runs(current_home(), run_id) as ledger:
        found = [step_rollouts(ledger, run_id, at) for at in (step, *([] if against is None else [against]))]
    if as_json:
        click.echo(json_list(found))
    else:
        print_document(rollouts_document(*found))


def _text(report: "RolloutReport") -> str:
    colour = {"equal": "green", "differs": "red", "not recorded": "yellow"}[report.verdict]
    origin = f"the commit of step {report.from_step}" if report.from_step else "the starting weights"
    logprobs = report.logprobs
    rewards = ", ".join("none" if reward is None else f"{reward:g}" for reward in report.group_rewards)
    reward = "no reward" if report.reward is None else f"reward {report.reward:g}"
    advantage = "" if report.advantage is None else f", advantage {report.advantage:+.4g}"
    lines = [
        f"{click.style(report.verdict.upper(), fg=colour, bold=True)}  {report.run_id}, step {report.step}, "
        f"row {report.row_id} ({report.row_location}), answer {report.sample} of "
        f"{len(report.group_rewards)}, lane {report.lane}",
        f"  drawn alone with the weights after step {report.policy_step}, from {origin}",
        f"  prompt: {report.prompt!r}",
        f"  completion: {report.completion!r}",
        f"  {len(report.tokens)} tokens: {' '.join(map(str, report.tokens))}",
        "  ended by itself" if report.ended_by == "stop" else "  cut at method.sampling.max_tokens",
        f"  log-probabilities: sum {sum(logprobs):.6g}, mean {sum(logprobs) / len(logprobs):.4g}, "
        f"least {min(logprobs):.4g}",
        f"  {reward}{advantage}; its group's rewards: {rewards}",
        f"  {click.style(report.outcome.replace('_', ' '), bold=True)}: {report.because}",
    ]
    if report.recorded_code_version != report.code_version:
        lines.append(f"  run with {report.recorded_code_version}, sampled again with {report.code_version}")
    lines += [
        f"  {'=' if number.is_equal else '≠'} {number.quantity}: {number.replayed}"
        + ("" if number.is_equal else f", {_OTHER[number.quantity]} {number.recorded}")
        for number in report.compared
    ]
    if report.verdict == "not recorded":
        lines.append(f"  the run has no record of step {report.step}")
    return "\n".join(lines)


_OTHER = {"rollout alone": "beside the others", "journaled digest": "there", "rollout_digest": "on record"}
