"""Planted culprits are named, luck is not; what other factors or the hour explain is ruled out; ties are
said."""

import numpy as np
import pyarrow.parquet as pq
import pytest

from assay.base.errors import ConfigError, DataError
from assay.records.failure_causes import AdjustedRatio
from assay.reporting.views.triage_statements import triage_text
from assay.triage.attempts.moments import TimeWindow
from assay.triage.attempts.sources import read_sources
from assay.triage.attempts.table import ColumnNames, table_of
from assay.triage.failures.diagnose import diagnose, explained_away
from triage_fleets import CULPRITS, FACTORS, random_fleet
from triage_incidents import random_incident
from variants import slow

NAMES = ColumnNames(failed="failed", at="at", unit="recipe", factors=FACTORS)


def diagnosis_of(tmp_path, text, names=NAMES, window=None, baseline=None):
    file = tmp_path / "attempts.csv"
    file.write_text(text)
    table = table_of(read_sources([file]), names)
    return diagnose(table, window=window, baseline=baseline, rng=np.random.default_rng(0))


def of_fleet(tmp_path, culprit, seed, unit_sd=0.5, size=500):
    fleet = random_fleet(size, culprit, unit_sd=unit_sd, rng=np.random.default_rng(seed))
    return fleet, diagnosis_of(tmp_path, fleet.csv())


@pytest.mark.parametrize("culprit", [*CULPRITS[:2], *slow(*CULPRITS[2:])], ids="+".join)
def test_a_planted_culprit_is_named_first_or_in_the_first_tie_set(tmp_path, culprit):
    named = []
    for seed in (1, 2):
        fleet, found = of_fleet(tmp_path, culprit, seed)
        first = found.causes[0] if found.causes else None
        named += [first is not None and first.is_confirmed and fleet.culprit in (first.factors, *first.ties)]
    assert any(named)


@pytest.mark.parametrize("unit_sd", [0.0, 1.5])
def test_luck_and_units_that_fail_alike_are_no_cause(tmp_path, unit_sd):
    verdicts = [of_fleet(tmp_path, (), seed, unit_sd)[1].verdict for seed in range(1001, 1006)]
    assert verdicts.count("nothing") >= 4


def test_the_pool_that_had_the_harder_jobs_in_a_bad_hour_is_not_named(tmp_path, published_data):
    jobs = pq.read_table(published_data / "triage" / "ci_jobs" / "jobs.parquet").to_pandas()
    jobs = jobs[(jobs["instance"] == "linux.g5.4xlarge.nvidia.gpu") & (jobs["pool"] != "lf.amz2023")]
    names = ColumnNames(failed="failed", at="at", factors=("pool", "job", "config"))
    found = diagnosis_of(tmp_path, jobs.to_csv(index=False), names)
    assert not any("pool" in factors for cause in found.causes for factors in (cause.factors, *cause.ties))
    (pool,) = (item for item in found.ruled_out if item.factors == {"pool": "amz2023"})
    plain, within, timed = ((round(r.ratio, 1), round(r.low, 1), round(r.high, 1)) for r in pool.adjustments)
    assert (plain[0], within, timed) == (3.1, (1.9, 1.3, 2.9), (0.6, 0.2, 1.7))
    assert (round(pool.rate, 3), round(pool.elsewhere_rate, 3)) == (0.160, 0.052)


def bad_day(seed, share):
    """Attempts of twelve days. On the seventh all hosts fail, and n3 runs a share of its attempts."""
    rng = np.random.default_rng(seed)

    def cells(k):
        is_bad = 120 <= k < 140
        host = 3 if is_bad and rng.random() < share else rng.integers(1, 9)
        return {"failed": int(rng.random() < (0.8 if is_bad else 0.05)), "host": f"n{host}", "at": 4_320 * k}

    return text_of(rows(240, cells))


@pytest.mark.parametrize("share", [0.3, 0.5, 0.7])
def test_the_host_that_ran_most_of_a_bad_day_is_not_told_apart_from_the_day(tmp_path, share):
    names = ColumnNames(failed="failed", at="at", unit="recipe", factors=("host",))
    found = [diagnosis_of(tmp_path, bad_day(seed, share), names) for seed in range(8)]
    assert {diagnosis.verdict for diagnosis in found} <= {"nothing", "unidentifiable"}
    rivals = [diagnosis for diagnosis in found if diagnosis.because.code == "rival"]
    assert share < 0.5 or rivals
    for diagnosis in rivals:
        assert not any(cause.is_confirmed for cause in diagnosis.causes)
        assert "host=n3 or time: failures follow both" in triage_text(diagnosis.because)
        assert "and as many without, of one time" in triage_text(diagnosis.causes[0].next)


def test_a_bad_host_is_a_cause_though_a_day_is_bad_too(tmp_path):
    def cells(k):
        is_bad = 120 <= k < 140
        return {
            "failed": int(k % 8 == 5 or (is_bad and k % 5 > 0) or k % 41 == 0),
            "host": f"n{k % 8}",
            "at": 4_320 * k,
        }

    names = ColumnNames(failed="failed", at="at", unit="recipe", factors=("host",))
    found = diagnosis_of(tmp_path, text_of(rows(240, cells)), names)
    assert (found.verdict, found.causes[0].factors) == ("cause", {"host": "n5"})


@pytest.mark.soak
def test_of_200_incidents_with_an_innocent_bystander_at_most_5_percent_name_one(tmp_path):
    innocent, is_named = 0, []
    for seed in range(1_000, 1_200):
        incident = random_incident(seed)
        names = ColumnNames(failed="failed", at="at", unit="recipe", factors=incident.factors)
        causes = [cause for cause in diagnosis_of(tmp_path, incident.csv, names).causes if cause.is_confirmed]
        is_culprit = [incident.at_fault in (cause.factors, *cause.ties) for cause in causes]
        innocent += not all(is_culprit)
        is_named += [any(is_culprit)] if incident.at_fault else []
    print(f"innocent ones named: {innocent} of 200; culprits named: {sum(is_named)} of {len(is_named)}")
    assert innocent <= 10 and np.mean(is_named) >= 0.6


def ratios(*intervals):
    return tuple(AdjustedRatio(within=(), ratio=r, low=low, high=high) for r, low, high in intervals)


@pytest.mark.parametrize(
    ("plain", "last", "is_explained"),
    [
        ((3.1, 2.3, 4.2), (0.6, 0.2, 1.7), True),
        ((13.8, 7.1, 26.9), (2.2, 0.4, 12.0), False),  # as far as the finest strata can tell, it may be 10
        ((5.1, 3.0, 8.6), (1.9, 0.9, 4.0), False),
        ((5.1, 3.0, 8.6), (1.9, 1.2, 2.9), False),  # less than it seemed, and more than nothing
    ],
)
def test_a_ratio_is_explained_away_where_none_lies_in_both_intervals(plain, last, is_explained):
    assert bool(explained_away(ratios(plain, last))) == is_explained


def test_a_culprit_is_named_though_strata_leave_little_to_compare(tmp_path):
    fleet, found = of_fleet(tmp_path, ("rack",), 20_002, 1.5)
    assert found.causes[0].factors == fleet.culprit


def rows(number, value_of):
    """`number` attempts of as many recipes, one a minute; `value_of(k)` gives failed and other cells."""
    return [{"at": str(60 * k), "recipe": f"r{k}", **value_of(k)} for k in range(number)]


def text_of(table):
    head = list(table[0])
    return "\n".join([",".join(head), *(",".join(str(row[name]) for name in head) for row in table)]) + "\n"


def test_factors_that_never_vary_apart_are_a_tie_with_the_experiment_that_would_tell(tmp_path):
    def cells(k):
        is_bad = k % 5 == 0
        driver, rack = ("550", "3") if is_bad else ("535", str(k % 3))
        return {"failed": int(k % 10 == 0 or k % 41 == 1), "driver": driver, "rack": rack}

    names = ColumnNames(failed="failed", at="at", unit="recipe", factors=("driver", "rack"))
    found = diagnosis_of(tmp_path, text_of(rows(300, cells)), names)
    assert found.verdict == "unidentifiable"
    tied_factors = [found.causes[0].factors, *found.causes[0].ties]
    assert {"driver": "550"} in tied_factors and {"rack": "3"} in tied_factors
    assert found.causes[0].next.code == "separate"


def test_two_culprits_are_several(tmp_path):
    def cells(k):
        return {
            "failed": int((k % 7 == 0 and k % 2 == 0) or (k % 11 == 3 and k % 2 == 1)),
            "host": k % 7,
            "image": k % 11,
        }

    names = ColumnNames(failed="failed", at="at", unit="recipe", factors=("host", "image"))
    found = diagnosis_of(tmp_path, text_of(rows(700, cells)), names)
    assert found.verdict == "several"
    assert [cause.factors for cause in found.causes[:2]] in (
        [{"host": "0"}, {"image": "3"}],
        [{"image": "3"}, {"host": "0"}],
    )


def test_forty_retries_of_one_broken_recipe_are_one_piece_of_evidence(tmp_path):
    def cells(k):
        return {"failed": int(k < 40 or k % 25 == 0), "host": "bad" if k < 40 else f"n{k % 6}"}

    table = rows(400, cells)
    for k, row in enumerate(table):
        row["recipe"] = "broken" if k < 40 else f"r{k % 60}"
    named = diagnosis_of(tmp_path, text_of(table), ColumnNames(failed="failed", unit="recipe", factors=("host",)))
    alone = diagnosis_of(tmp_path, text_of(table), ColumnNames(failed="failed", factors=("host",)))
    assert (named.verdict, alone.verdict) == ("nothing", "cause")
    assert named.unit_correlation > 0.3


def test_a_surge_is_found_against_what_was_so_before(tmp_path):
    """A host that always fails often is no surge; an image that began to is."""

    def cells(k):
        is_new = k >= 1_000 and k % 8 == 1
        return {
            "failed": int((k % 5 == 0 and k % 2 == 0) or (is_new and k % 3 == 0) or k % 37 == 0),
            "host": k % 5,
            "image": k % 8,
        }

    names = ColumnNames(failed="failed", at="at", unit="recipe", factors=("host", "image"))
    times = {"window": TimeWindow(60_000.0, 90_000.0, "w"), "baseline": TimeWindow(0.0, 60_000.0, "b")}
    found = diagnosis_of(tmp_path, text_of(rows(1_500, cells)), names, **times)
    candidates = diagnosis_of(tmp_path, text_of(rows(1_500, cells)), names)
    assert (found.verdict, found.causes[0].factors) == ("cause", {"image": "1"})
    assert candidates.causes[0].factors == {"host": "0"}
    assert found.baseline_rate is not None and found.baseline_rate < found.rate


def test_rates_per_exposure_do_not_blame_who_merely_ran_longer(tmp_path):
    def cells(k):
        hours = 10 if k % 4 == 0 else 1
        return {"failed": int(np.random.default_rng(k).random() < 0.04 * hours), "hours": hours, "host": k % 4}

    table = text_of(rows(600, cells))
    per_attempt = diagnosis_of(tmp_path, table, ColumnNames(failed="failed", factors=("host",)))
    per_hour = diagnosis_of(tmp_path, table, ColumnNames(failed="failed", exposure="hours", factors=("host",)))
    assert (per_attempt.verdict, per_hour.verdict) == ("cause", "nothing")


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        (lambda k: {"failed": 0, "host": k % 3}, "no attempt failed"),
        (lambda k: {"failed": 1, "host": k % 3}, "every attempt failed"),
        (lambda k: {"failed": k % 2, "host": k}, "no value is shared by 4 attempts"),
        (lambda k: {"failed": k % 2, "host": "n"}, "all attempts have one value"),
        (lambda k: {"failed": k % 2, "host": k % 3, "recipe": "one"}, "attempts are of 1"),
    ],
)
def test_where_nothing_can_be_known_the_verdict_says_why(tmp_path, cells, message):
    names = ColumnNames(failed="failed", unit="recipe", factors=("host",))
    found = diagnosis_of(tmp_path, text_of(rows(40, cells)), names)
    assert (found.verdict, found.causes) == ("nothing", ())
    assert message in triage_text(found.because)


def test_windows_that_cannot_be_are_errors(tmp_path):
    table = text_of(rows(40, lambda k: {"failed": k % 2, "host": k % 3}))
    some, none = TimeWindow(0.0, 600.0, "0..600"), TimeWindow(1e9, 2e9, "1e9..2e9")
    timed = ColumnNames(failed="failed", at="at", factors=("host",))
    with pytest.raises(DataError, match=r"--window 1e9\.\.2e9: no attempt is in it; the table's are from 1970"):
        diagnosis_of(tmp_path, table, timed, window=none)
    with pytest.raises(ConfigError, match="give both"):
        diagnosis_of(tmp_path, table, timed, baseline=some)
    with pytest.raises(ConfigError, match="give --at"):
        diagnosis_of(tmp_path, table, ColumnNames(failed="failed", factors=("host",)), window=some)


@pytest.mark.soak
@pytest.mark.parametrize("unit_sd", [0.0, 1.5])
def test_in_400_fleets_without_a_culprit_at_most_7_percent_accuse(tmp_path, unit_sd):
    verdicts = [of_fleet(tmp_path, (), seed, unit_sd)[1].verdict for seed in range(2_000, 2_400)]
    assert sum(verdict in ("cause", "several") for verdict in verdicts) <= 28
