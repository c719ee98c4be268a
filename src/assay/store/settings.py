"""What holds for all runs of a home: what a device-hour costs, who is told of events, which code is trusted.

    $ASSAY_HOME/settings.yaml

Nothing here is part of what a run computes, so it may change at any time, and prices are those of the day on
which somebody asks.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import Field, NonNegativeFloat, PositiveFloat, model_validator

from assay.base.config import FrozenConfig, LoadedConfig, read_config_file, validated
from assay.base.key_reference import key_reference
from assay.records.run import Attempt, PhaseSeconds

SETTINGS_FILE = "settings.yaml"
CPU = "cpu"


class Settings(FrozenConfig):
    """The settings of one home."""

    currency: str = ""
    """The currency of the prices: `EUR`, `USD`, `credits`."""

    device_hour_prices: dict[str, NonNegativeFloat] = Field(default_factory=dict)
    """Price of a device-hour by kind: `cpu` for a rank on a CPU, else a part of the GPU's name (`H100`,
    `A100-SXM4-80GB`; the longest match counts). A device without a price makes the cost unknown."""

    planned_device: str | None = None
    """Device whose price `assay plan` uses; not needed with one price."""

    on_event: str | None = None
    """Shell command for each event of a run: `finished`, `failed`, `stopped`, `moved`, `stalled`. Its
    environment holds ASSAY_EVENT, ASSAY_RUN, ASSAY_STEP, ASSAY_TEXT, ASSAY_RUN_DIR and ASSAY_HOME. It is
    killed after 30 seconds and never affects the run."""

    sinks: tuple[str, ...] = ()
    """Destinations of the live metrics of every run: `tensorboard:FOLDER`, `mlflow:SERVER_OR_FOLDER`,
    `wandb:FOLDER` (offline), `trackio:FOLDER`; see `assay runs sink`."""

    python_graders: Literal["fenced", "trusted"] = "fenced"
    """How python graders run (docs/suites.md): `fenced` in a kernel sandbox, refused if there is none;
    `trusted` with your permissions. $ASSAY_PYTHON_GRADERS and `--python-graders` override it."""

    webhook_hosts: tuple[str, ...] = ()
    """Private hosts, addresses and networks (`hooks.lan`, `10.1.2.3`, `10.1.0.0/16`) that webhooks of `assay
    serve` may call, also by `http://`."""

    project_storage_gb: PositiveFloat = 100.0
    """GB of files and incomplete uploads that a project of `assay serve` may store."""

    @model_validator(mode="after")
    def _prices_have_a_currency(self) -> "Settings":
        if self.device_hour_prices and not self.currency:
            raise ValueError("device_hour_prices without a currency: say which, e.g. currency: EUR")
        if self.planned_device not in (None, *self.device_hour_prices):
            has = ", ".join(self.device_hour_prices) or "none"
            raise ValueError(f"planned_device: '{self.planned_device}' has no price; those that have one: {has}")
        return self

    def price_of(self, attempt: Attempt) -> float | None:
        """Return the price of a device-hour of an attempt; None if unknown."""
        prices = self.device_hour_prices
        if attempt.processor.instructions:
            return prices.get(CPU)
        model = attempt.processor.model.lower()
        fitting = [kind for kind in prices if kind != CPU and kind.lower() in model]
        return prices[max(fitting, key=len)] if fitting else None

    def planned_price(self) -> "HourPrice | None":
        """Return the price of a device-hour of a plan; None if unknown."""
        prices = self.device_hour_prices
        kind = self.planned_device or (next(iter(prices)) if len(prices) == 1 else None)
        return None if kind is None else HourPrice(kind, prices[kind], self.currency)


class Money(NamedTuple):
    """An amount of money."""

    amount: float
    currency: str

    def __str__(self) -> str:
        digits = (0 if self.amount >= 1000 else 2) if self.amount >= 0.1 or not self.amount else 4
        return f"{self.amount:,.{digits}f} {self.currency}"


class HourPrice(NamedTuple):
    """The price of one device for an hour."""

    kind: str
    """The kind of the device."""
    amount: float
    currency: str

    def of(self, device_hours: float) -> Money:
        """Return the cost of `device_hours`."""
        return Money(device_hours * self.amount, self.currency)

    def __str__(self) -> str:
        return f"{Money(self.amount, self.currency)} a device-hour of {self.kind}"


NO_SETTINGS = Settings()


def settings_in(folder: Path) -> Settings:
    """Load the settings of the home in a folder."""
    path = folder / SETTINGS_FILE
    loaded = read_config_file(path, ()) if path.is_file() else LoadedConfig({}, {})
    return validated(Settings, loaded)


def cost_of(settings: Settings, attempts: Sequence[Attempt], parts: Sequence[PhaseSeconds]) -> Money | None:
    """Return the cost of parts of a run's device time; None if the price of a device is unknown.

    Evaluations are charged at the price of the device that trained last.
    """
    prices = {attempt.attempt: settings.price_of(attempt) for attempt in attempts}
    last = prices[max(prices)] if prices else None
    found = [(part.held_s, prices.get(part.attempt, last)) for part in parts]
    if not settings.device_hour_prices or any(price is None and held_s for held_s, price in found):
        return None
    return Money(sum(held_s / 3600 * (price or 0.0) for held_s, price in found), settings.currency)


def settings_reference() -> str:
    """Return a reference of all keys, as Markdown (`docs/settings.md`)."""
    introduction = [
        "# Settings of a home",
        "",
        "`$ASSAY_HOME/settings.yaml` holds for all runs that lie there; unknown keys are refused.",
        "This page is what `assay runs keys --settings` prints.",
    ]
    return key_reference(introduction, Settings)
