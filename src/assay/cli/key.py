"""`assay key`: who may ask `assay serve`, and in the name of which project."""

import getpass
from typing import TYPE_CHECKING

import click

from assay.base.clock import SystemClock, utc_text
from assay.base.errors import ConfigError
from assay.base.names import checked_name
from assay.cli.given import CommandGroup, given_home

if TYPE_CHECKING:
    from assay.serving.keys import KeyShelf


@click.group(cls=CommandGroup)
def key() -> None:
    """Keys of the API: make, list and revoke them.

    From the first key on, nobody asks 'assay serve' without one, and it may listen on other addresses than this
    machine's own.
    """


@key.command()
@click.option(
    "--project", help="Everything that is asked for with the key is looked up there; made if need be."
)
@click.option(
    "--admin",
    is_flag=True,
    help="It opens projects, their keys, limits and costs (admin.organization), and no more.",
)
@click.option("--name", default="", help="For people: whose it is, or what for.")
@click.option("--read-only", is_flag=True, help="It may look, and ask for nothing.")
@click.option(
    "--days", type=click.FloatRange(min=0, min_open=True), help="It expires after so many; never by default."
)
def create(project: str | None, admin: bool, name: str, read_only: bool, days: float | None) -> None:
    """Make a key, and show it this once."""
    if admin == (project is not None) or (admin and read_only):
        raise click.UsageError("A key is of one --project, or --admin; and --read-only is of a project's.")
    by = f"user {getpass.getuser()}"
    if project is not None:
        _ensure_project(project, by)
    made = _keys().make(
        project=project or "default",
        name=name,
        scopes=("admin",) if admin else ("read",) if read_only else ("read", "write"),
        lives_s=None if days is None else days * 86_400,
        by=by,
    )
    click.echo(made.secret)
    whose = "of admins" if admin else f"of project {project}"
    click.echo(f"{made.created.key_id} {whose}: kept nowhere, so it is shown this once.", err=True)


def _ensure_project(project: str, by: str) -> None:
    from assay.serving.admin.projects import ProjectShelf
    from assay.store.objects import open_store

    if ":" in checked_name(project, of="--project"):
        raise ConfigError(f"--project {project}: ':' would be read as a part of a model's name. Leave it out.")
    state = ProjectShelf(open_store(str(given_home().api)), SystemClock()).ensure(project, by=by)
    if state.archived is not None:
        raise ConfigError(f"--project {project}: it is archived, for good. Choose another.")


@key.command("list")
def list_() -> None:
    """List all keys, without their secrets."""
    keys = _keys()
    for key_id, state in keys.shelf.states(keys.shelf.ids()):
        created = state.created
        stands = "opens" if state.opens(SystemClock().now_s()) else "revoked" if state.revoked else "expired"
        until = "" if created.expires_s is None else f" until {utc_text(created.expires_s)}"
        project = "" if "admin" in created.scopes else created.project
        click.echo(
            f"{key_id}  …{created.hint}  {stands}{until}  {'+'.join(created.scopes)}  "
            f"{project}  {created.name}".rstrip()
        )


@key.command()
@click.argument("key_id", metavar="KEY")
def revoke(key_id: str) -> None:
    """Have KEY open nothing any more, at once."""
    from assay.serving.ids import is_id

    if not is_id("key", key_id) or _keys().revoke(key_id, by=f"user {getpass.getuser()}") is None:
        raise ConfigError(f"no key '{key_id}'. 'assay key list' lists those that there are.")
    click.echo(f"{key_id} opens nothing any more")


def _keys() -> "KeyShelf":
    from assay.serving.keys import KeyShelf
    from assay.store.objects import open_store

    return KeyShelf(open_store(str(given_home().api)), SystemClock())
