"""The newest checkpoint is the last by name: step-9 comes after step-15."""

from pathlib import Path

from exact import Training, main


class PicksByName(Training):
    def newest_first(self) -> list[Path]:
        return sorted(self.out.glob("step-*.pt"), reverse=True)


main(PicksByName)
