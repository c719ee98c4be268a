"""The flag to resume is accepted, and has no effect; checkpoints of before are overwritten."""

from exact import Training, main


class IgnoresItsFlag(Training):
    def resume(self) -> None:
        pass


main(IgnoresItsFlag)
