"""Fixes the suites of a campaign: looks use the questions that were declared.

The declaration keeps each suite's digest, which covers the bytes of its items. Recorded looks are repeated from
their scores, so a suite may change once its campaign is decided.
"""

from pathlib import Path

from assay.base.errors import ConfigError
from assay.decision.config import CampaignConfig, SuiteBenchmark
from assay.evals.config import read_suite
from assay.evals.contents import named_files, suite_sha256
from assay.records.campaign import Campaign


def sealed_suites(config: CampaignConfig, *, base_dir: Path) -> dict[str, str]:
    """Return the current digest of each suite by its path in the campaign's file.

    Raises `ConfigError` if a file that a suite names is missing, because it could be written after the look.
    """
    found = {}
    named = {
        benchmark.suite for benchmark in config.benchmarks if isinstance(benchmark, SuiteBenchmark) and benchmark.suite
    }
    for name in sorted(named):
        path = base_dir / name
        suite = read_suite(path)
        for file, sha256 in named_files(suite, path.parent).items():
            if sha256 is None:
                raise ConfigError(
                    f"{path}: names {file}, which does not exist. All questions of a campaign must exist before "
                    "the first run: add the file, or correct its name in the suite."
                )
        found[name] = suite_sha256(path, suite)
    return found


def require_suites_as_declared(campaign: Campaign, config: CampaignConfig) -> None:
    """Raise `ConfigError` if a suite changed since the declaration."""
    now = sealed_suites(config, base_dir=Path(campaign.base_dir))
    changed = [name for name, sha256 in now.items() if campaign.suites[name] != sha256]
    if changed:
        raise ConfigError(
            f"campaign '{campaign.name}': suite {Path(campaign.base_dir) / changed[0]}, or a file that it names "
            "(items, held-out texts), changed since the campaign was declared, so a look would use other "
            "questions. Restore the files, or declare a campaign with another name on the "
            "current suite."
        )
