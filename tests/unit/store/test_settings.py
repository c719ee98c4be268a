"""What device time costs, by the kind of device of each attempt."""

import pytest

from assay.base.config import LoadedConfig, validated
from assay.base.errors import ConfigError
from assay.records.processor import Processor
from assay.records.run import Attempt, PhaseSeconds
from assay.store.settings import Money, Settings, cost_of
from machine import MACHINE

PRICES = Settings(currency="EUR", device_hour_prices={"cpu": 0.5, "H100": 3.0, "H100 NVL": 2.0})


def attempt(number: int, model: str, instructions: str = "") -> Attempt:
    processor = Processor(model=model, instructions=instructions, torch="2")
    return Attempt(
        run_id="r",
        attempt=number,
        world_size=2,
        start_step=0,
        started_s=0.0,
        processor=processor,
        code_version=MACHINE["code_version"],
        folder=MACHINE["folder"],
        environment=MACHINE["environment"],
    )


def held(number: int, hours: float) -> list[PhaseSeconds]:
    half_s = 1800 * hours
    return [
        PhaseSeconds(run_id="r", attempt=number, rank=rank, held_s=half_s, seconds={"compute": half_s})
        for rank in (0, 1)
    ]


def test_each_attempt_costs_what_its_devices_do_and_what_is_beside_it_costs_as_the_last() -> None:
    attempts = [
        attempt(1, "Xeon", "GenuineIntel"),
        attempt(2, "NVIDIA H100 80GB HBM3"),
        attempt(3, "NVIDIA H100 NVL"),
    ]
    parts = [*held(1, 10), *held(2, 1), *held(3, 2), *held(0, 1)]
    cost = cost_of(PRICES, attempts, parts)
    assert cost == Money(5.0 + 3.0 + 4.0 + 2.0, "EUR")
    assert str(cost) == "14.00 EUR"


def test_a_device_without_a_price_makes_the_cost_unknown_and_not_zero() -> None:
    assert cost_of(PRICES, [attempt(1, "NVIDIA A100")], held(1, 1)) is None
    assert cost_of(Settings(), [attempt(1, "Xeon", "GenuineIntel")], held(1, 1)) is None


def test_a_free_device_costs_nothing_which_is_known() -> None:
    free = Settings(currency="EUR", device_hour_prices={"cpu": 0.0})
    assert cost_of(free, [attempt(1, "Xeon", "GenuineIntel")], held(1, 1)) == Money(0.0, "EUR")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"device_hour_prices": {"cpu": 1}}, "device_hour_prices without a currency"),
        ({"currency": "EUR", "device_hour_prices": {"cpu": -1}}, "device_hour_prices.cpu"),
        ({"curency": "EUR"}, "Perhaps you meant 'currency'"),
        (
            {"currency": "EUR", "device_hour_prices": {"cpu": 1}, "planned_device": "H100"},
            "'H100' has no price; those that have one: cpu",
        ),
    ],
)
def test_wrong_settings_are_refused_by_key(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        validated(Settings, LoadedConfig(settings, {}))


def test_a_plan_is_counted_at_the_only_price_or_at_the_one_that_is_named() -> None:
    assert PRICES.planned_price() is Settings().planned_price() is None
    only = Settings(currency="EUR", device_hour_prices={"H100": 2.1}).planned_price()
    named = PRICES.model_copy(update={"planned_device": "H100 NVL"}).planned_price()
    assert only is not None and named is not None
    assert (str(only), str(only.of(3000))) == ("2.10 EUR a device-hour of H100", "6,300 EUR")
    assert named.of(10) == Money(20.0, "EUR")
