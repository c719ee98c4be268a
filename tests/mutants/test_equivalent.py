"""What is listed as no different is a mutant of today's code: where a line changes, its entry goes with it."""

import tomllib

from mutants.operators import mutants_of
from mutants.rooms import EQUIVALENT, ROOT, SOURCE


def test_every_mutant_that_is_listed_as_equivalent_is_one_of_the_code_as_it_is() -> None:
    entries = tomllib.loads(EQUIVALENT.read_text())["equivalent"]
    mutants = {
        (file, mutant.location.function, mutant.was, mutant.now)
        for file in {entry["file"] for entry in entries}
        for mutant in mutants_of(ROOT / SOURCE / file)
    }
    listed = [(entry["file"], entry["function"], entry["was"], entry["now"]) for entry in entries]
    assert sorted(set(listed) - mutants) == []
    assert len(listed) == len(set(listed))
