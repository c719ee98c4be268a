"""`assay chat MODEL`: say something to a run's or a folder's language model."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from assay.base.errors import ConfigError
from assay.base.installed import PREFIX
from assay.base.units import number_of
from assay.cli.given import PATH, given_home, run_and_step

if TYPE_CHECKING:
    from assay.inference.local.local_model import LocalModel
    from assay.scoring.sampler import Completion
    from assay.workflows.export.chat import Conversation

LONGEST_ANSWER = 256
"""Tokens, unless said otherwise; half of what the model takes, where that is less."""
BEGIN_AGAIN = "/new"


@click.command()
@click.argument("model")
@click.option("-p", "--prompt", help="Ask this, print the answer and end; '-' for what is on stdin.")
@click.option("--system", help="What stands before all turns; needs a chat template.")
@click.option(
    "--step", type=click.IntRange(min=0), help="Of which commit; by default the last one. Also RUN@STEP."
)
@click.option(
    "--max-tokens",
    type=click.IntRange(min=1),
    help="Longest answer; by default 256, or half of what the model takes.",
)
@click.option(
    "--temperature",
    type=click.FloatRange(min=0),
    default=1.0,
    show_default=True,
    help="0: always the likeliest.",
)
@click.option(
    "--top-p",
    type=click.FloatRange(min=0, min_open=True, max=1),
    default=1.0,
    show_default=True,
    help="Never a token beyond this much probability.",
)
@click.option("--top-k", type=click.IntRange(min=1), help="Only so many of the likeliest tokens.")
@click.option("--stop", multiple=True, metavar="TEXT", help="An answer ends before this. May be repeated.")
@click.option("--seed", default=0, show_default=True, help="The same words and seed have the same answer.")
@click.option("--tokenizer", type=PATH, help="Of a run whose dataset does not hold it.")
def chat(
    model: str,
    prompt: str | None,
    system: str | None,
    step: int | None,
    max_tokens: int | None,
    temperature: float,
    top_p: float,
    top_k: int | None,
    stop: tuple[str, ...],
    seed: int,
    tokenizer: Path | None,
) -> None:
    """Talk with MODEL: a RUN of SFT, DPO or GRPO, RUN@STEP for one of its commits, or a folder with a model.

    A dataset of chats has a template, and so have folders of chat models: with it this is a conversation.
    Without one the model goes on with each text that it is given.

    In a terminal, type; /new begins again, Ctrl-D ends. From a script, --prompt or stdin is asked once, and the
    answer is all that stdout has.
    """
    is_talk = prompt is None and sys.stdin.isatty()
    click.echo(f"loading {model} ...", err=True)
    found = _model(model, step, tokenizer)
    asked = "" if is_talk else _asked(prompt)
    from assay.scoring.sampler import Sampling
    from assay.workflows.export.chat import Conversation

    sampling = Sampling(
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        max_tokens=max_tokens or max(1, min(LONGEST_ANSWER, found.window_tokens // 2)),
        seed=seed,
        stop=stop,
    )
    conversation = Conversation(found, sampling, system=system)
    if not is_talk:
        _said(conversation, asked)
        click.echo()
        return
    how = "a conversation" if found.has_template else "no chat template: it goes on with what you write"
    click.echo(f"{model}, {found.name}; {how}. {BEGIN_AGAIN} begins again, Ctrl-D ends.", err=True)
    while (text := _typed()) is not None:
        if text.strip() == BEGIN_AGAIN:
            conversation.begin_again()
        elif text.strip():
            answer = _said(conversation, text)
            click.echo("" if answer.finish_reason == "stop" else " …")


def _said(conversation: "Conversation", text: str) -> "Completion":
    """Print the answer as it comes, without the end of its line, and what the model did not read."""
    answer = conversation.say(text, lambda piece: click.echo(piece, nl=False))
    if answer.prompt_tokens_cut:
        tokens = number_of(answer.prompt_tokens_cut, "token")
        said = f"the model has no room for the first {tokens} of it and did not read them"
        click.secho(said, err=True, fg="yellow")
    return answer


def _asked(prompt: str | None) -> str:
    """What is asked once."""
    text = sys.stdin.read() if prompt in (None, "-") else str(prompt)
    if not text.strip():
        raise ConfigError(
            "nothing is asked: there is no terminal to type in, and nothing on stdin. Give --prompt TEXT, or "
            "pipe a text in."
        )
    return text


def _typed() -> str | None:
    """A line; None at the end."""
    try:
        return input("> ")
    except EOFError:
        click.echo(err=True)
        return None


def _model(name: str, step: int | None, tokenizer: Path | None) -> "LocalModel":
    home = given_home()
    is_folder = Path(name).is_dir() and ("/" in name or not home.has_run(name))
    if is_folder or name.startswith(PREFIX):
        if tokenizer is not None or step is not None:
            which = "--tokenizer" if tokenizer is not None else "--step"
            raise ConfigError(
                f"{which}: {name} is a folder, which holds one model and its tokenizer. Leave it out."
            )
        from assay.workflows.export.chat import folder_to_talk_with

        return folder_to_talk_with(name)
    run_id, of_name = run_and_step(home, name)
    from assay.workflows.export.chat import run_to_talk_with

    return run_to_talk_with(home, run_id, step=of_name if step is None else step, tokenizer=tokenizer)
