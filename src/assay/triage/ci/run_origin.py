"""Finds the commit, run and configuration of a results file.

The sources are `--path`, then a property of the file, then its path. Matrix builds test one commit in several
configurations; what fails in one of them only is broken there, not flaky. So every part of a path that is
neither commit nor run counts as configuration.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from assay.base.errors import ConfigError, DataError

PARTS = ("commit", "run", "config")
COMMIT_PROPERTIES = {
    *("commit", "commitsha", "commitid", "commithash", "gitcommit", "gitcommitsha", "gitsha", "sha", "headsha"),
    *("githubsha", "cicommitsha", "revision", "gitrevision", "vcsrevision", "buildsourceversion", "circlesha1"),
}
"""Names under which CI systems store the commit, in lower case without punctuation."""
CONFIG_PROPERTIES = {"config", "configuration", "environment", "toxenv", "toxenvname", "job"}
RUN_PROPERTIES = {"run", "runid", "githubrunid", "cipipelineid", "buildid"}

_EDGE_BEFORE, _EDGE_AFTER = r"(?<![0-9A-Za-z])", r"(?![0-9A-Za-z])"
_COMMIT = re.compile(
    rf"(?:(?<=/)|^)commit(?:[-_=](?P<named>[0-9A-Za-z]+)|(?P<number>[0-9]+)){_EDGE_AFTER}"
    rf"|{_EDGE_BEFORE}(?P<hash>(?=[0-9]*[a-f])[0-9a-f]{{7,40}}|[0-9a-f]{{40}}){_EDGE_AFTER}"
)
# A bare number names a run only where it is all of a part's name, or follows a word for runs or results:
# `cuda-12` and `3.12` are configurations.
_RUN = re.compile(
    rf"(?:(?<=/)|^)[0-9]+(?=/|\.[A-Za-z]+$|$)"
    rf"|{_EDGE_BEFORE}(?:run|attempt|try|rerun|junit|results?|report|pytest|r)[-_=.]?[0-9]+(?!\.[0-9]){_EDGE_AFTER}"
    rf"|[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}(?:[T_ -][0-9][0-9.:_-]*Z?)?"
)


class RunOrigin(NamedTuple):
    """`commit` and `run` are empty if unknown; `config` is the rest of the path."""

    commit: str
    run: str
    config: str


def path_pattern(template: str) -> re.Pattern[str]:
    """Compile `{commit}/{config}/{run}.xml`, which matches the end of a path; `*` matches within one part."""
    pattern = ""
    for piece in re.split(r"(\{[^}]*\}|\*)", template):
        if piece == "*":
            pattern += "[^/]*"
        elif piece.startswith("{"):
            if piece[1:-1] not in PARTS or f"(?P<{piece[1:-1]}>" in pattern:
                raise ConfigError(f"--path {template}: expected {{commit}}, {{run}} and {{config}}, each once.")
            pattern += f"(?P<{piece[1:-1]}>[^/]+?)"
        else:
            pattern += re.escape(piece)
    return re.compile(rf"(?:^|/){pattern}$")


def run_origin(file: Path, properties: Mapping[str, str], pattern: re.Pattern[str] | None) -> RunOrigin:
    """Return the origin of a file; `--path` takes precedence over properties, these over the path's words."""
    path = file.as_posix()
    named: dict[str, str] = {}
    if pattern is not None:
        found = pattern.search(path)
        if found is None:
            raise DataError(
                f"{file}: its path does not end as --path says. Correct the pattern, or leave the file out."
            )
        named = found.groupdict()
    plain = {re.sub("[^a-z0-9]", "", name.lower()): value.strip() for name, value in properties.items()}
    met = max(_COMMIT.finditer(path), key=lambda found: found.start(), default=None)
    of_path = (met["named"] or met["number"] or met["hash"]) if met else ""
    words = "" if pattern is not None else _RUN.sub("#", path.replace(met[0], "#") if met else path)
    return RunOrigin(
        named.get("commit") or _first(plain, COMMIT_PROPERTIES) or of_path,
        named.get("run") or _first(plain, RUN_PROPERTIES),
        named.get("config") or _first(plain, CONFIG_PROPERTIES) or words,
    )


def _first(properties: Mapping[str, str], names: set[str]) -> str:
    return next((value for name, value in properties.items() if name in names and value), "")
