"""`assay serve key`: API keys of `assay serve` and their projects."""

import getpass
from typing import TYPE_CHECKING

import click

from assay.base.clock import SystemClock, utc_text
from assay.base.errors import ConfigError
from assay.base.names import checked_name
from assay.cli.command import CommandGroup
from assay.cli.parameters import current_home

if TYPE_CHECKING:
    from assay.records.api_key import KeyScope
    from assay.serving.keys import KeyRepository


_MODULES = {
    "create": ("assay.cli.serve.key", "Create a key, and show its secret once."),
    "list": ("assay.cli.serve.key", "List all keys, without their secrets."),
    "revoke": ("assay.cli.serve.key", "Revoke a key at once."),
}


@click.group(cls=CommandGroup, modules=_MODULES)
def key() -> None:
    """Create, list and revoke API keys.

    Once there is a key, 'assay serve' rejects requests without one, and it may listen on addresses other than
    localhost.
    """


@key.command()
@click.option("--project", help="Project that the key belongs to; created if it does not exist.")
@click.option(
    "--admin", is_flag=True, help="Create an admin key, for projects, keys, limits and costs only (admin.organization)."
)
@click.option("--name", default="", show_default=False, help="Description of the key, e.g. its owner.")
@click.option("--metrics", is_flag=True, help="Create a key that opens /metrics and nothing else, e.g. for Prometheus.")
@click.option("--read-only", is_flag=True, help="Allow only read requests.")
@click.option(
    "--days",
    type=click.FloatRange(min=0, min_open=True),
    help="Number of days until the key expires; by default it never does.",
)
def create(project: str | None, admin: bool, metrics: bool, name: str, read_only: bool, days: float | None) -> None:
    """Create a key, and show its secret once."""
    if [project is not None, admin, metrics].count(True) != 1 or (read_only and project is None):
        raise click.UsageError("Give one of --project, --admin and --metrics; --read-only is for keys of a project.")
    by = f"user {getpass.getuser()}"
    if project is not None:
        _ensure_project(project, by)
    scopes: "tuple[KeyScope, ...]" = ("read",) if read_only else ("read", "write")
    created_key = _keys().make(
        project=project or "default",
        name=name,
        scopes=("admin",) if admin else ("metrics",) if metrics else scopes,
        lives_s=None if days is None else days * 86_400,
        by=by,
    )
    click.echo(created_key.secret)
    owner = "of admins" if admin else "for /metrics" if metrics else f"of project {project}"
    click.echo(f"{created_key.created.key_id} {owner}: the secret is not stored and cannot be shown again.", err=True)


def _ensure_project(project: str, by: str) -> None:
    from assay.serving.admin.projects import ProjectRepository
    from assay.store.objects import open_store

    if ":" in checked_name(project, of="--project"):
        raise ConfigError(
            f"--project {project}: ':' separates the parts of a model name. Leave it out of the project's name."
        )
    state = ProjectRepository(open_store(str(current_home().api)), SystemClock()).ensure(project, by=by)
    if state.archived is not None:
        raise ConfigError(f"--project {project}: the project is archived. Choose another one.")


@key.command("list")
def list_() -> None:
    """List all keys, without their secrets."""
    keys = _keys()
    for key_id, state in keys.states(keys.ids()):
        created = state.created
        status = "active" if state.opens(SystemClock().now_s()) else "revoked" if state.revoked else "expired"
        until = "" if created.expires_s is None else f" until {utc_text(created.expires_s)}"
        project = "" if {"admin", "metrics"} & {*created.scopes} else created.project
        click.echo(
            f"{key_id}  …{created.hint}  {status}{until}  {'+'.join(created.scopes)}  "
            f"{project}  {created.name}".rstrip()
        )


@key.command()
@click.argument("key_id", metavar="KEY")
def revoke(key_id: str) -> None:
    """Revoke KEY at once."""
    from assay.serving.ids import is_id

    if not is_id("key", key_id) or _keys().revoke(key_id, by=f"user {getpass.getuser()}") is None:
        raise ConfigError(f"no key '{key_id}'. 'assay serve key list' lists the keys.")
    click.echo(f"{key_id} is revoked")


def _keys() -> "KeyRepository":
    from assay.serving.keys import KeyRepository
    from assay.store.objects import open_store

    return KeyRepository(open_store(str(current_home().api)), SystemClock())
