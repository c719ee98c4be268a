"""Every method of the API, as a request says it: what a job keeps of it, and what is refused."""

import openai
import pytest

from assay.serving.base_models import read_base_models
from assay.serving.methods import SERVED_METHODS
from assay.serving.openai.app_state import AppState
from assay.training.methods.registry import METHODS
from served import app_in, sdk_of
from served_talker import GRADER, RECIPES, lines, rows, write_talker


@pytest.fixture(scope="module")
def app(tmp_path_factory) -> AppState:
    folder = tmp_path_factory.mktemp("talker")
    write_talker(folder / "models")
    return app_in(folder)


@pytest.fixture(scope="module")
def sdk(app) -> openai.OpenAI:
    return sdk_of(app)


def create(sdk: openai.OpenAI, method: str | None, inside: dict | None = None, **kwargs):
    file = sdk.files.create(file=("rows.jsonl", lines(rows(method or "supervised", 3))), purpose="fine-tune")
    requested = {} if method is None else {"method": {"type": method, method: inside or {}}}
    return sdk.fine_tuning.jobs.create(model="talker", training_file=file.id, **requested, **kwargs)


def test_every_method_of_the_registry_has_a_name_in_the_api() -> None:
    assert {method.recipe_type for method in SERVED_METHODS.values()} == {method.folder for method in METHODS}


@pytest.mark.parametrize(
    ("method", "hyperparameters"),
    [
        ("supervised", {"n_epochs": 2, "batch_size": 8, "learning_rate_multiplier": 0.5}),
        ("dpo", {"n_epochs": 1, "batch_size": "auto", "beta": 0.3}),
        ("reward_model", {"learning_rate_multiplier": 2}),
        ("reinforcement", {"n_epochs": 1, "eval_interval": 5}),
    ],
)
def test_a_job_of_each_method_says_again_what_was_asked(sdk, method, hyperparameters) -> None:
    rewarded = {"grader": GRADER} if method == "reinforcement" else {}
    job = create(sdk, method, {"hyperparameters": hyperparameters, **rewarded})
    output = getattr(sdk.fine_tuning.jobs.retrieve(job.id).method, method)
    output = output if isinstance(output, dict) else output.model_dump(exclude_none=True)
    assert {name: output["hyperparameters"][name] for name in hyperparameters} == hyperparameters
    assert output.get("grader") == rewarded.get("grader")


def test_a_job_that_names_no_method_is_supervised(sdk) -> None:
    assert create(sdk, None).method.type == "supervised"


def test_what_only_the_hosted_service_can_choose_may_be_left_to_it_and_no_value_is_ignored(sdk) -> None:
    left = {"compute_multiplier": "auto", "eval_samples": "auto", "reasoning_effort": "default"}
    create(sdk, "reinforcement", {"grader": GRADER, "hyperparameters": left})
    with pytest.raises(openai.BadRequestError, match="eval_samples' is not supported") as refused:
        create(sdk, "reinforcement", {"grader": GRADER, "hyperparameters": {"eval_samples": 3}})
    assert refused.value.param == "method.reinforcement.hyperparameters.eval_samples"


@pytest.mark.parametrize(
    ("method", "inside", "param"),
    [
        ("reinforcement", {}, "method.reinforcement.grader"),
        ("reinforcement", {"grader": {"type": "magic"}}, "method.reinforcement.grader"),
        ("reinforcement", {"grader": {**GRADER, "operation": "is"}}, "method.reinforcement.grader.operation"),
        (
            "reinforcement",
            {"grader": {**GRADER, "input": "{{ sample.thought }}"}},
            "method.reinforcement.grader",
        ),
        (
            "reinforcement",
            {"grader": {"type": "python", "name": "p", "source": "def grade(s, i): return s" + ".a" * 100_000}},
            "method.reinforcement.grader.source",
        ),
        ("supervised", {"grader": GRADER}, "method.supervised.grader"),
        ("supervised", {"hyperparameters": {"beta": 0.1}}, "method.supervised.hyperparameters.beta"),
        ("dpo", {"hyperparameters": {"beta": 0}}, "method.dpo.hyperparameters.beta"),
        ("classification", {}, "method.type"),
    ],
)
def test_a_method_that_cannot_be_honoured_is_a_400_that_names_what_is_wrong(sdk, method, inside, param) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        create(sdk, method, inside)
    assert refused.value.param == param


def test_a_method_that_a_model_has_not_is_answered_with_those_that_it_has(sdk) -> None:
    with pytest.raises(openai.BadRequestError, match=f"Its methods are: {', '.join(sorted(RECIPES))}"):
        create(sdk, "classification")


def test_the_validation_file_is_another_one_of_the_right_purpose(sdk) -> None:
    file, other = (
        sdk.files.create(file=("rows.jsonl", lines(rows("supervised", 3, seed=seed))), purpose="fine-tune")
        for seed in (0, 1)
    )
    job = create(sdk, "supervised", validation_file=other.id)
    assert sdk.fine_tuning.jobs.retrieve(job.id).validation_file == other.id
    evals = sdk.files.create(file=("rows.jsonl", b"1"), purpose="evals")
    for file_id, code in {
        file.id: "invalid_validation_file",
        evals.id: "invalid_file_purpose",
        "file-x": "file_not_found",
    }.items():
        with pytest.raises(openai.BadRequestError) as refused:
            create(sdk, "supervised", validation_file=file_id)
        assert (refused.value.code, refused.value.param) == (code, "validation_file")


def test_a_template_that_is_none_is_refused_before_anything_is_served(tmp_path) -> None:
    from assay.base.errors import ConfigError

    path = write_talker(tmp_path) / "talker.yaml"
    path.write_text(path.read_text().replace("chat_template: chatml", "chat_template: nonsense"))
    with pytest.raises(ConfigError, match=r"talker.yaml: chat_template: .*nonsense: no file there"):
        read_base_models(tmp_path)


@pytest.mark.parametrize(
    ("method", "hyperparameters"),
    [
        ("supervised", {"learning_rate_multiplier": 5e-324}),
        ("supervised", {"learning_rate_multiplier": 1e-320}),
        ("dpo", {"beta": 5e-324}),
        ("supervised", {"batch_size": 7}),
    ],
)
def test_a_hyperparameter_that_makes_no_recipe_is_refused_when_the_job_is_created(sdk, method, hyperparameters):
    with pytest.raises(openai.BadRequestError) as refused:
        create(sdk, method, {"hyperparameters": hyperparameters})
    assert refused.value.param == f"method.{method}.hyperparameters.{next(iter(hyperparameters))}"
