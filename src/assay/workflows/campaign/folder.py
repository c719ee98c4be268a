"""The folder of a campaign: its declaration, which is written once, before the first run, and its decisions.

runs/campaigns/NAME/
  campaign.json          Campaign: what was declared
  settings.json          what may change: budget, workers, opinions, locations of files
  decisions/             Decision of each candidate at each look: faster-3.json
  sealed/                HoldoutOpening of each candidate for which the sealed benchmark was opened: faster.json
  faster.known_good.json the recipe of a candidate that passed
  memo.html, memo.md     the memo
  pipeline.json, models/ of a pipeline, whose stages are the arms (see workflows.pipeline)
runs/NAME-ARM-sSEED/     an ordinary run of one arm with one seed
  benchmarks/BENCHMARK/  result.json, items.parquet

The declaration keeps each suite's digest, which covers the bytes of its items, so looks use the questions that were
declared. Recorded looks are repeated from their scores, so a suite may change once its campaign is decided.

A decision is written once. It follows from the per-item results, so deciding again gives the same one. A recorded
decision that does not follow any more (a result changed, or someone edited the verdict) is detected and rejected.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from assay.base.clock import Clock
from assay.base.config import LoadedConfig, read_config_file, stored, validated
from assay.base.digest import canonical_json, sha256_of_json
from assay.base.errors import ConfigError, DamagedDataError, DataError
from assay.data.dataset.dataset import Dataset
from assay.decision.candidate import BASELINE, NOT_OF_A_RECIPE, known_good_after, known_good_recipe, patched
from assay.decision.config import CampaignConfig, SuiteBenchmark
from assay.evals.config import read_suite
from assay.evals.items import named_files, suite_sha256
from assay.records.campaign import Campaign
from assay.records.decision import Clause, Decision, KnownGood
from assay.store.home import CAMPAIGN_FILE, Home
from assay.store.ledger.ledger import Ledger
from assay.store.objects import ObjectStore, open_store
from assay.store.run_location import moved_along
from assay.training.recipe import Recipe

SETTINGS_FILE = "settings.json"
KNOWN_GOOD_FILE = "known_good.json"
"""Suffix of the file name, after the candidate's name and a dot."""

MAY_CHANGE = frozenset({"budget_device_hours", "workers", "dissent", "owner", "least_effect_because"})
"""Keys that do not affect verdicts, and may change after the declaration."""


class LoadedCampaign(NamedTuple):
    """A campaign file with its known-good recipe; nothing is written yet."""

    home: Home
    config: CampaignConfig
    base_dir: Path
    """Folder that its paths are relative to."""
    recipe: LoadedConfig
    """The baseline's, before seeds are filled in; empty if it has none."""
    known_good: KnownGood | None = None
    """None if the recipe is a file."""

    @property
    def is_declared(self) -> bool:
        return self.config.name in self.home.campaign_names()

    def recipe_of(self, arm: str) -> LoadedConfig:
        """Return the recipe of an arm with the first seed."""
        patch = {} if arm == self.config.baseline else self.config.candidate(arm).patch
        return patched(self.recipe, patch, arm=arm, seed=self.config.first_seed)


class OpenCampaign(NamedTuple):
    """A declared campaign."""

    home: Home
    record: Campaign
    config: CampaignConfig
    known_good: KnownGood | None

    @property
    def folder(self) -> Path:
        return self.home.campaigns / self.record.name

    @property
    def store(self) -> ObjectStore:
        return open_store(str(self.folder))

    @property
    def recipe(self) -> LoadedConfig:
        return LoadedConfig(self.record.recipe, {})


def load_campaign(home: Home, path: Path, overrides: tuple[str, ...] = ()) -> LoadedCampaign:
    """Read a campaign file and its recipe. Raises `ConfigError` that lists every wrong key with a hint."""
    config = validated(CampaignConfig, read_config_file(path, overrides))
    if config.recipe is None:
        return LoadedCampaign(home, config, path.parent, LoadedConfig({}, {}))
    return LoadedCampaign(home, config, path.parent, *known_good_recipe(path.parent / config.recipe))


def declare(loaded: LoadedCampaign, clock: Clock) -> OpenCampaign:
    """Write the declaration of a campaign, or find the existing one.

    Raises `ConfigError` if a campaign of this name was declared with other gates, arms or seeds, or if a suite has
    changed.
    """
    home, config = loaded.home, loaded.config
    record = _declaration(loaded, clock)
    values = config.model_dump(mode="json")
    may_change = {key: values[key] for key in sorted(MAY_CHANGE)}
    folder = home.campaigns / config.name
    store = open_store(str(folder))
    if not store.put_if_absent(CAMPAIGN_FILE, record.to_json().encode()):
        record, config = _as_declared(home, record, config)
        require_suites_as_declared(record, config)
    locations = {"folder": str(folder), "base_dir": record.base_dir, "dataset": _dataset(record)}
    settings = {"locations": locations, **may_change}
    store.put(SETTINGS_FILE, canonical_json(settings).encode())
    return OpenCampaign(home, record, config, loaded.known_good)


def check_declaration(loaded: LoadedCampaign, clock: Clock) -> None:
    """Raise the errors that `declare` would raise for an existing campaign, without writing anything."""
    if loaded.is_declared:
        record, _ = _as_declared(loaded.home, _declaration(loaded, clock), loaded.config)
        require_suites_as_declared(record, loaded.config)


def find_campaign(home: Home, name: str) -> OpenCampaign:
    """Return a declared campaign."""
    folder = home.campaign_dir(name)
    settings = json.loads((folder / SETTINGS_FILE).read_bytes())
    record = _located(declared_campaign(folder), settings.pop("locations"), folder)
    config = _declared_config(record, settings)
    known_good = None
    if record.known_good_sha256 and config.recipe is not None:
        known_good = known_good_recipe(Path(record.base_dir) / config.recipe)[1]
    return OpenCampaign(home, record, config, known_good)


def declared_campaign(folder: Path) -> Campaign:
    """Return the declaration of the campaign in a folder."""
    path = folder / CAMPAIGN_FILE
    return Campaign.from_json(path.read_bytes(), source=path)


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


def _declaration(loaded: LoadedCampaign, clock: Clock) -> Campaign:
    declared = loaded.config.model_dump(mode="json", exclude=set(MAY_CHANGE))
    return Campaign(
        name=loaded.config.name,
        config=declared,
        config_sha256=sha256_of_json({"config": declared, "recipe": loaded.recipe.values}),
        recipe=loaded.recipe.values,
        base_dir=str(loaded.base_dir.resolve()),
        known_good_sha256=loaded.known_good.digest() if loaded.known_good else None,
        created_s=clock.now_s(),
        suites=sealed_suites(loaded.config, base_dir=loaded.base_dir),
    )


def _declared_config(record: Campaign, settings: Mapping[str, Any]) -> CampaignConfig:
    """Return the declared configuration with the current values of the keys that may change."""
    return stored(CampaignConfig, {**record.config, **settings}, where=f"campaign '{record.name}': its declaration")


def _located(record: Campaign, locations: Mapping[str, str], folder: Path) -> Campaign:
    """Return the declaration with the current locations of its files, if the folder was moved."""
    was = Path(locations["folder"])
    dataset = moved_along(locations["dataset"], was, folder, "manifest.json")
    base_dir = moved_along(locations["base_dir"], was, folder)
    return record.model_copy(update={"base_dir": base_dir, "recipe": _with_dataset(record.recipe, dataset)})


def _dataset(record: Campaign) -> str:
    return str(record.recipe.get("data", {}).get("dataset", ""))


def _with_dataset(recipe: dict[str, Any], dataset: str) -> dict[str, Any]:
    return {**recipe, "data": {**recipe["data"], "dataset": dataset}} if dataset else recipe


def _as_declared(home: Home, requested: Campaign, config: CampaignConfig) -> tuple[Campaign, CampaignConfig]:
    found = declared_campaign(home.campaigns / requested.name)
    if _dataset(found) != _dataset(requested) and _is_dataset_of(found, home, Path(_dataset(requested))):
        found = found.model_copy(update={"recipe": _with_dataset(found.recipe, _dataset(requested))})
    found = found.model_copy(update={"base_dir": requested.base_dir})
    if found.config_sha256 == requested.config_sha256:
        return found, config
    # What an earlier release declared lacks the keys that came later: they have their defaults.
    settings = config.model_dump(mode="json", include=set(MAY_CHANGE))
    declared = _declared_config(found, settings).model_dump(mode="json", exclude=set(MAY_CHANGE))
    changed = sorted(_changes("", declared, requested.config))
    recipes = (validated(Recipe, LoadedConfig(campaign.recipe, {})) for campaign in (found, requested))
    if not changed and next(recipes) == next(recipes):
        return found, config
    changed = changed or ["the known-good recipe"]
    raise ConfigError(
        f"campaign '{found.name}' was declared with another {', '.join(changed[:4])}. What was declared "
        "before the first run cannot be changed afterwards: give the campaign another name, or restore the "
        f"file. ({', '.join(sorted(MAY_CHANGE))} may change.)"
    )


def _is_dataset_of(campaign: Campaign, home: Home, folder: Path) -> bool:
    """Return whether the campaign's first run was trained on the dataset in `folder`."""
    arm = campaign.config.get("baseline", BASELINE)
    run_id = f"{campaign.name}-{arm}-s{campaign.config['first_seed']}"
    return home.has_run(run_id) and home.run(run_id).dataset_fingerprint == Dataset.open(folder).fingerprint


def _changes(prefix: str, before: Any, after: Any) -> Iterator[str]:
    if isinstance(before, dict) and isinstance(after, dict):
        for key in before.keys() | after.keys():
            yield from _changes(f"{prefix}.{key}".lstrip("."), before.get(key), after.get(key))
    elif before != after:
        yield prefix


# Decisions


def all_decisions(folder: Path) -> list[Decision]:
    """Return every revision of every decision, in no particular order."""
    return [Decision.from_json(path.read_bytes(), source=path) for path in (folder / "decisions").glob("*.json")]


def recorded_looks(folder: Path) -> dict[tuple[str, int, bool], Decision]:
    """Return the newest revision of each decision by (candidate, number of seeds, whether the look was
    declared)."""
    return {
        (decision.candidate, decision.look.num_seeds, decision.look.is_gate): decision
        for decision in sorted(all_decisions(folder), key=lambda decision: decision.revision)
    }


def recorded_decisions(folder: Path) -> list[Decision]:
    """Return the newest revisions, sorted by candidate and look."""
    return [decision for _, decision in sorted(recorded_looks(folder).items())]


def newest_decisions(folder: Path) -> dict[str, Decision]:
    """Return each candidate's decision with the most seeds; among equals, that of the declared look."""
    return {decision.candidate: decision for decision in recorded_decisions(folder)}


def record_decision(campaign: OpenCampaign, decision: Decision, ledger: Ledger) -> Decision:
    """Record a decision; if only files that clauses name have changed since, as a further revision.

    Raises `DamagedDataError` if the recorded decision of this look contradicts the results, `DataError` if it
    has other clauses.
    """
    look = decision.look
    recorded = recorded_looks(campaign.folder).get((decision.candidate, look.num_seeds, look.is_gate))
    if recorded is not None:
        _require_same_clauses(recorded, decision, campaign.folder / recorded.path())
        if _is_revised(recorded, decision):
            decision = decision.model_copy(update={"revision": recorded.revision + 1})
        elif (problem := _difference_between(recorded, decision)) is not None:
            raise DamagedDataError(
                f"{campaign.folder / decision.path()}: does not follow from the results any more: {problem}. "
                "A result or the decision was changed later, or another version of assay decided. Restore the file, or "
                "move it away and decide again."
            )
        else:
            decision = recorded
    campaign.store.put_if_absent(decision.path(), decision.to_json().encode())
    _keep_known_good(campaign, decision)
    ledger.record_decision(decision)
    return decision


def changed_since(decisions: Sequence[Decision], ledger: Ledger) -> list[Decision]:
    """Return the decisions that differ from the ones in the ledger."""
    campaigns = {decision.campaign for decision in decisions}
    known = {decision.path(): decision for name in campaigns for decision in ledger.decisions(name)}
    return [decision for decision in decisions if known.get(decision.path(), decision) != decision]


def _require_same_clauses(recorded: Decision, found: Decision, path: Path) -> None:
    before, now = (
        [(gate.gate, clause.name) for gate in decision.gates for clause in gate.clauses]
        for decision in (recorded, found)
    )
    if before == now:
        return
    differ = [f"'{name}' of gate {gate} is new" for gate, name in now if (gate, name) not in before]
    differ += [f"'{name}' of gate {gate} is gone" for gate, name in before if (gate, name) not in now]
    raise DataError(
        f"{path}: has other clauses than this version of assay: {', '.join(differ) or 'in another order'}. "
        "Use the version that wrote it, or move the file away and run the campaign again."
    )


def _is_revised(recorded: Decision, found: Decision) -> bool:
    """Return whether the decisions differ only in clauses whose files have changed."""
    files = {clause.name: clause.evidence for gate in recorded.gates for clause in gate.clauses}
    changed = frozenset(
        clause.name for gate in found.gates for clause in gate.clauses if files[clause.name] != clause.evidence
    )
    if not changed or _difference_between(recorded, found) is None:
        return False
    return _difference_between(recorded, found, besides=changed) is None


def _keep_known_good(campaign: OpenCampaign, decision: Decision) -> None:
    """Save the recipe of a scaled candidate as known good; remove it if a revision no longer scales it. Stages
    and arms without a recipe are skipped."""
    key = f"{decision.candidate}.{KNOWN_GOOD_FILE}"
    if not NOT_OF_A_RECIPE.isdisjoint(decision.patch):
        return
    if decision.recommendation == "scale":
        known_good = known_good_after(
            decision,
            campaign.record.recipe,
            campaign.known_good,
            name=f"{decision.campaign}-{decision.candidate}",
        )
        campaign.store.put(key, known_good.to_json().encode())
    elif decision.revision > 1 and campaign.store.exists(key):
        campaign.store.delete(key)


def _difference_between(recorded: Decision, found: Decision, *, besides: frozenset[str] = frozenset()) -> str | None:
    """Describe the first clause in which two decisions of a look differ; costs, opinions and texts are ignored.

    `besides`: clauses that may differ, and with them the recommendation.
    """
    if not besides and recorded.recommendation != found.recommendation:
        return f"it says {recorded.recommendation}, the results say {found.recommendation}"
    for before, after in zip(recorded.gates, found.gates, strict=True):
        for old, new in zip(before.clauses, after.clauses, strict=True):
            if old.type in ("budget", "spent") or old.name in besides:
                continue
            if old.verdict != new.verdict or not _are_equal((old.value, old.bound), (new.value, new.bound)):
                return f"clause '{old.name}' was {_verdict_text(old)}, and is {_verdict_text(new)}"
    was, is_now = recorded.effect, found.effect
    if not _are_equal((was.value, was.low, was.high), (is_now.value, is_now.low, is_now.high)):
        return f"its effect was {was.value:+.9g}, and is {is_now.value:+.9g}"
    return None


def _verdict_text(clause: Clause) -> str:
    return clause.verdict if clause.value is None else f"{clause.verdict} ({clause.value:.6g})"


def _are_equal(before: Sequence[float | None], after: Sequence[float | None]) -> bool:
    """Compare numbers except for the last digits, because libraries and processors sum in different orders."""
    return len(before) == len(after) and all(
        old == new or (old is not None and new is not None and math.isclose(old, new, rel_tol=1e-6, abs_tol=1e-9))
        for old, new in zip(before, after, strict=True)
    )
