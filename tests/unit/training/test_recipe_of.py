"""The recipe of a run that was begun before."""

import pytest

from assay.base.errors import ConfigError
from assay.records.run import Run
from assay.training.recipe import Recipe, recipe_of, recipe_sha256
from tiny_recipe import tiny_recipe


def a_run(**recipe: object) -> Run:
    return with_recipe(tiny_recipe() | recipe)


def with_recipe(tree: dict[str, object]) -> Run:
    return Run(
        run_id="lm-0312", created_s=0, recipe=tree, recipe_sha256=recipe_sha256(tree, ""),
        dataset_fingerprint="", code_version="7.1+gabc", run_dir="", store_url="", num_steps=10,
    )  # fmt: skip


def test_a_runs_recipe_is_read_as_it_was_written():
    assert recipe_of(a_run(seed=7)) == Recipe.model_validate(tiny_recipe(seed=7))


def test_an_unknown_key_is_one_sentence_that_names_the_run_the_key_and_who_wrote_it():
    with pytest.raises(ConfigError) as raised:
        recipe_of(a_run(trainer={"optimiser": {}}))
    assert str(raised.value).startswith(
        "run 'lm-0312': its recipe, written by assay 7.1+gabc: key 'trainer.optimiser' is unknown here; "
    )
    assert "use assay 7.1+gabc, or a newer one" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_an_earlier_version_of_the_recipe_is_upgraded(monkeypatch):
    def renamed(tree):
        return {"name": tree.pop("title"), **tree}

    tree = tiny_recipe()
    monkeypatch.setattr(Recipe, "upgrades", (renamed,))
    monkeypatch.setattr(Recipe, "version", 2)
    tree["title"] = tree.pop("name")
    run = with_recipe(tree)
    assert recipe_of(run).name == "tiny"
    assert recipe_of(run).model_dump(mode="json")["version"] == 2


def test_a_recipe_that_was_changed_after_the_run_began_is_refused():
    run = a_run()
    changes = {"recipe": {**run.recipe, "seed": 11}, "dataset_fingerprint": "another", "recipe_sha256": ""}
    for key, value in changes.items():
        with pytest.raises(ConfigError, match=r"run 'lm-0312': its recipe .* was changed after the run began"):
            recipe_of(run.model_copy(update={key: value}))


def test_a_recipe_is_known_wherever_its_dataset_lies_and_whatever_is_evaluated_on_the_way():
    tree = tiny_recipe()
    moved = {**tree, "data": {**tree["data"], "dataset": "elsewhere"}, "evaluation": {"suite": "s.yaml"}}
    assert recipe_sha256(moved, "f") == recipe_sha256(tree, "f")
