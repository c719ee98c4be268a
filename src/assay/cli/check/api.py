"""`assay check api`: hold a server of the Tinker API or of OpenAI's fine-tuning API to what its clients expect."""

import sys
from pathlib import Path
from typing import Any

import click

from assay.cli.parameters import OUT_PAGE, force_option, json_option, print_status, timeout_option

_LOOPS = ("sft", "rl", "dpo", "jobs")
_KINDS = (
    "before", "within", "after", "doubled", "delayed", "restart-during", "restart-after", "kill-during", "kill-after",
)  # fmt: skip


@click.command()
@click.argument("url")
@click.option("--base", required=True, metavar="MODEL", help="Base model of the server that the loops train.")
@click.option(
    "--key",
    envvar=("TINKER_API_KEY", "OPENAI_API_KEY"),
    default="any",
    show_default=False,
    help="API key of the server.",
)
@click.option("--restart", metavar="COMMAND", help="Shell command that restarts the server.")
@click.option("--kill", metavar="COMMAND", help="Shell command that kills the server, if it then comes back.")
@click.option("--loop", "loops", type=click.Choice(_LOOPS), multiple=True, help="Only this loop. May be repeated.")
@click.option("--fault", "kinds", type=click.Choice(_KINDS), multiple=True, help="Only this fault. May be repeated.")
@timeout_option(300.0, "a loop, and of a restart")
@click.option("--out", type=OUT_PAGE, help="Also write an HTML page.")
@force_option
@json_option
def api(
    url: str,
    key: str,
    loops: tuple[str, ...],
    restart: str | None,
    kill: str | None,
    out: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Send loops of the official SDKs to the training API at URL through lost, repeated, delayed and reordered messages
    and restarts, and print which requests were held, lost, doubled or wrong, and what the client saw.

    Exit code 1: some fault was not held. The loops create sessions, files and small jobs on the server.
    """
    from assay.checks.api.server import find_target

    target = find_target(url, key, loops)
    from assay.checks.api.check import check_api  # here, for it imports what serves
    from assay.checks.api.report import check_document

    commands = {name: command for name, command in (("restart", restart), ("kill", kill)) if command}
    found = check_api(target, key=key, commands=commands, notify=print_status, **options)
    document = check_document(found)
    if as_json:
        click.echo(found.to_json())
    else:
        from assay.reporting.terminal.document import print_document

        print_document(document)
    if out is not None:
        from assay.reporting.documents.render import render_document, write_page

        print_status(str(write_page(render_document(document), out, default=out)))
    sys.exit(found.verdict == "fail")
