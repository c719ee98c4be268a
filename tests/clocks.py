"""A clock that a test moves."""


class ManualClock:
    """Stands still but where somebody sleeps, or a test moves it."""

    def __init__(self, at_s: float = 0.0) -> None:
        self.at_s = at_s

    def now_s(self) -> float:
        return self.at_s

    def monotonic_s(self) -> float:
        return self.at_s

    def sleep_s(self, seconds: float) -> None:
        self.at_s += seconds
