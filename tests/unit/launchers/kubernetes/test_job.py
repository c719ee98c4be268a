"""The objects of a run are valid by the published schemas, and say what becomes of a pod that ends."""

from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from click.testing import CliRunner

from assay.base.config import option_name, validated_options
from assay.base.errors import ConfigError
from assay.cli.launch_target import SCHEDULER_OPTIONS
from assay.cli.main import cli
from assay.launchers.kubernetes.job import KubernetesConfig, job_name, objects_of
from assay.launchers.kubernetes.launcher import job_text
from assay.launchers.launches import SCHEDULERS, scheduler
from assay.records.run import Run
from assay.store.home import Home

MANIFESTS = Path(__file__).parents[4] / "kubernetes"
VERSIONS = ("1.31", "1.34", "1.37")


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home.at(tmp_path / "the runs")


def config(tmp_path: Path, **options: Any) -> KubernetesConfig:
    return KubernetesConfig(**{"image": "assay:1", "claim": f"runs:{tmp_path}", **options})


def job_of(home: Home, run: Run, config: KubernetesConfig, *options: str, world_size: int = 4) -> dict[str, Any]:
    return objects_of(home, run, config, name=f"team/{job_name(run)}", world_size=world_size, options=options)[1]


def pod_of(job: dict[str, Any]) -> dict[str, Any]:
    return job["spec"]["template"]["spec"]


@pytest.mark.parametrize("version", VERSIONS)
def test_the_printed_objects_are_valid(home: Home, run: Run, tmp_path: Path, version: str) -> None:
    whole = config(
        tmp_path,
        nodes=2,
        queue="team",
        service_account="assay",
        secret=("keys", "more"),
        memory="64Gi",
        gpus_per_node=8,
    )
    for chosen in (config(tmp_path), whole):
        objects = list(yaml.safe_load_all(job_text(home, run, chosen, world_size=4)))
        assert [item["kind"] for item in objects] == ["Service", "Job"]
        for item in objects:
            kubernetes_validate.validate(item, version, strict=True)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("file", sorted(MANIFESTS.glob("*.yaml")), ids=lambda file: file.stem)
def test_the_manifests_of_server_worker_and_database_are_valid(file: Path, version: str) -> None:
    for item in yaml.safe_load_all(file.read_text()):
        kubernetes_validate.validate(item, version, strict=True)


def test_the_manifests_can_be_applied_in_one_stream() -> None:
    """As docs/kubernetes.md does: without a separator, two objects would become one."""
    texts = [file.read_text() for file in sorted(MANIFESTS.glob("*.yaml"))]
    whole = [item for text in texts for item in yaml.safe_load_all(text)]
    assert list(yaml.safe_load_all("".join(texts))) == whole
    assert {"PersistentVolumeClaim", "StatefulSet", "Deployment", "RoleBinding"} < {item["kind"] for item in whole}


def test_ends_of_pods_mean_what_the_node_command_says(home: Home, run: Run, tmp_path: Path) -> None:
    spec = job_of(home, run, config(tmp_path, nodes=2))["spec"]
    assert (spec["parallelism"], spec["completions"], spec["completionMode"]) == (2, 2, "Indexed")
    rules = [(rule["action"], rule.get("onExitCodes", {}).get("values")) for rule in spec["podFailurePolicy"]["rules"]]
    assert rules == [("Ignore", None), ("FailJob", [2]), ("Ignore", [75])]
    assert spec["podFailurePolicy"]["rules"][0]["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}]
    assert (spec["podReplacementPolicy"], spec["successPolicy"]) == ("Failed", {"rules": [{"succeededCount": 1}]})
    tolerations = pod_of({"spec": spec})["tolerations"]
    assert {(item["key"].partition("/")[2], item["tolerationSeconds"]) for item in tolerations} == {
        ("not-ready", 20),
        ("unreachable", 20),
    }


def test_each_pod_runs_the_node_command_under_its_index(home: Home, run: Run, tmp_path: Path) -> None:
    service, job = objects_of(
        home,
        run,
        config(tmp_path, nodes=2, grace_s=60),
        name=f"team/{job_name(run)}",
        world_size=4,
        options=("--max-restarts=3",),
    )
    command = pod_of(job)["containers"][0]["command"]
    assert " ".join(command) == (
        "assay train --resume long --workers 4 --on nodes --lead assay-long-0.assay-long --workers-per-node 2 "
        "--leave-within=50 --max-restarts=3 --node $(JOB_COMPLETION_INDEX) --address $(POD_IP) "
        f"--log-file {run.run_dir}/kubernetes/node-$(JOB_COMPLETION_INDEX).log"
    )
    assert pod_of(job)["subdomain"] == service["metadata"]["name"] == job["metadata"]["name"]
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert pod_of(job)["terminationGracePeriodSeconds"] == 60
    assert pod_of(job)["containers"][0]["resources"] == {"requests": {"cpu": "6"}}


def test_a_range_of_workers_is_a_range_of_nodes(tmp_path: Path) -> None:
    chosen = config(tmp_path, nodes=4)
    sizes = [
        chosen.size(16, ("--workers=4..16",))[:2],
        chosen.size(16, ("--workers=5..16",))[:2],
        chosen.size(16)[:2],
        config(tmp_path, nodes=4).size(6)[:2],  # two a node fill three
    ]
    assert sizes == [(4, 1), (4, 2), (4, 4), (3, 3)]
    with pytest.raises(ConfigError, match=r"--nodes 4 --workers 3"):
        chosen.size(3)


def test_in_a_queue_a_run_begins_with_its_fewest_nodes(home: Home, run: Run, tmp_path: Path) -> None:
    plain, queued = config(tmp_path, nodes=4), config(tmp_path, nodes=4, queue="team")
    assert job_of(home, run, plain, "--workers=2..4")["spec"]["parallelism"] == 4
    job = job_of(home, run, queued, "--workers=2..4")
    assert job["spec"]["parallelism"] == job["spec"]["completions"] == 2
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team"
    assert job["metadata"]["annotations"]["kueue.x-k8s.io/elastic-job"] == "true"


def test_no_secret_is_in_an_object(run: Run, tmp_path: Path) -> None:
    home = Home.at(tmp_path / "runs", "postgresql://assay:hush@db/assay")
    with pytest.raises(ConfigError, match="put ASSAY_LEDGER in a Secret"):
        job_text(home, run, config(tmp_path), world_size=1)
    text = job_text(home, run, config(tmp_path, secret=("ledger",)), world_size=1)
    assert "hush" not in text
    assert "secretRef" in text


@pytest.mark.parametrize("run_id", ["a" * 60, "Run_1.5", "x..y", "r-"])
def test_a_job_has_a_name_that_pods_can_have_too(run: Run, run_id: str) -> None:
    name = job_name(run.model_copy(update={"run_id": run_id}))
    assert len(f"{name}-9999") <= 63
    assert name.replace("-", "").isalnum() and name == name.lower() and name[-1] != "-"
    assert name != job_name(run.model_copy(update={"run_id": run_id.lower() + "0"}))


def test_a_folder_that_pods_cannot_reach_is_named(home: Home, run: Run, tmp_path: Path) -> None:
    for changes, what in (
        ({"store_url": "/home/me/store"}, r"the run's store is /home/me/store"),
        (
            {"recipe": {**run.recipe, "data": {**run.recipe["data"], "dataset": "/data/mine"}}},
            "data.dataset is /data/mine",
        ),
    ):
        with pytest.raises(ConfigError, match=rf"{what}, which the pods cannot reach"):
            job_of(home, run.model_copy(update=changes), config(tmp_path))
    job_of(home, run.model_copy(update={"store_url": "s3://bucket/prefix"}), config(tmp_path))
    with pytest.raises(ConfigError, match=r"ASSAY_HOME is .*, which the pods cannot reach"):
        job_of(home, run, config(tmp_path / "elsewhere"))


def test_a_patch_adds_to_lists_and_merges_what_has_a_name(home: Home, run: Run, tmp_path: Path) -> None:
    (patch := tmp_path / "patch.yaml").write_text(
        yaml.safe_dump(
            {
                "spec": {
                    "template": {
                        "spec": {
                            "nodeSelector": {"gpu": "h200"},
                            "tolerations": [{"key": "gpu", "operator": "Exists"}],
                            "containers": [{"name": "node", "env": [{"name": "NCCL_DEBUG", "value": "INFO"}]}],
                        }
                    }
                }
            }
        )
    )
    pod = pod_of(job_of(home, run, config(tmp_path, patch=patch)))
    assert pod["nodeSelector"] == {"gpu": "h200"}
    assert [item["key"].rpartition("/")[2] for item in pod["tolerations"]] == ["not-ready", "unreachable", "gpu"]
    [container] = pod["containers"]
    assert [item["name"] for item in container["env"]] == ["POD_IP", "ASSAY_HOME", "CONTAINER_IMAGE", "NCCL_DEBUG"]
    assert container["image"] == "assay:1"
    patch.write_text("[spec]")
    with pytest.raises(ConfigError, match="expected a mapping"):
        job_of(home, run, config(tmp_path, patch=patch))


@pytest.mark.parametrize(
    "patch",
    [
        "spec: 5",
        "spec: {template: }",
        "spec: {template: {spec: {containers: 7}}}",
        "metadata: {name: other}",
        "metadata: {namespace: other}",
        "metadata: {annotations: }",
        "metadata: {annotations: {assay/own-size: '9'}}",
    ],
)
def test_a_patch_that_makes_it_another_job_is_refused(home: Home, run: Run, tmp_path: Path, patch: str) -> None:
    (tmp_path / "patch.yaml").write_text(patch)
    with pytest.raises(ConfigError, match=r"patch.yaml: a patch may not change"):
        job_of(home, run, config(tmp_path, patch=tmp_path / "patch.yaml"))
    (tmp_path / "patch.yaml").write_text("metadata: {annotations: {team: speech}, labels: {team: speech}}")
    assert job_of(home, run, config(tmp_path, patch=tmp_path / "patch.yaml"))["metadata"]["labels"]["team"] == "speech"


def test_the_id_of_a_run_is_no_variable_of_the_pod(home: Home, run: Run, tmp_path: Path) -> None:
    named = run.model_copy(update={"run_id": "$(POD_IP)"})
    command = pod_of(job_of(home, named, config(tmp_path)))["containers"][0]["command"]
    assert command[command.index("--resume") + 1] == "$$(POD_IP)"
    assert command[command.index("--address") + 1] == "$(POD_IP)"


def test_printed_objects_have_the_namespace_of_the_context_and_tell_that_the_run_is_missing(
    home: Home, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    assert "namespace: default\n" in job_text(home, run, config(tmp_path), world_size=1)
    clusters = [{"name": "c", "cluster": {"server": "https://c:6443"}}]
    contexts = [{"name": "c", "context": {"cluster": "c", "namespace": "team"}}]
    (tmp_path / "kubeconfig").write_text(
        yaml.safe_dump({"clusters": clusters, "contexts": contexts, "current-context": "c"})
    )
    text = job_text(home, run, config(tmp_path), world_size=1)
    assert "namespace: team\n" in text and "namespace: default" not in text
    assert "# The run does not exist yet" in text
    Path(run.run_dir).mkdir(parents=True)
    Path(run.run_dir, "run.json").touch()
    assert "# The run does not exist yet" not in job_text(home, run, config(tmp_path), world_size=1)


def test_a_trainjob_has_the_same_pods_and_a_fixed_size(home: Home, run: Run, tmp_path: Path) -> None:
    chosen = config(tmp_path, nodes=2, as_="trainjob", queue="team")
    text = job_text(home, run, chosen, world_size=4, options=("--workers=2..4",))
    assert "size of a TrainJob is fixed" in text
    runtime, trainjob = yaml.safe_load_all(text)
    assert (runtime["kind"], trainjob["kind"]) == ("ClusterTrainingRuntime", "TrainJob")
    [node] = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    pod = node["template"]["spec"]["template"]["spec"]
    assert "assay-long-node-0-0.assay-long" in pod["containers"][0]["command"]
    assert runtime["spec"]["mlPolicy"]["numNodes"] == trainjob["spec"]["trainer"]["numNodes"] == 2
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}, "spec": node["template"]["spec"]}
    kubernetes_validate.validate(job, VERSIONS[-1], strict=True)


@pytest.mark.parametrize(
    "wrong",
    [
        {"claim": "runs"},
        {"claim": "Runs:/x"},
        {"image": ""},
        {"memory": "many"},
        {"memory": "0"},
        {"memory": "64"},
        {"memory": "64m"},
        {"grace_s": 0},
        {"queue": "a b"},
        {"secret": ("a", "A")},
        {"cpu": 0},
    ],
)
def test_a_wrong_option_is_refused_as_it_was_typed(tmp_path: Path, wrong: dict[str, Any]) -> None:
    [name] = wrong
    with pytest.raises(ConfigError, match=rf"^{option_name(name)}: ") as refused:
        validated_options(KubernetesConfig, {"image": "assay:1", "claim": f"runs:{tmp_path}", **wrong})
    assert "_s" not in str(refused.value)


def test_options_without_which_no_pod_can_run_are_named() -> None:
    with pytest.raises(ConfigError, match=r"--image: required.*\n--claim: required"):
        validated_options(KubernetesConfig, {"nodes": 2})


def test_memory_may_be_given_in_every_unit_that_is_not_a_mistake(tmp_path: Path) -> None:
    for memory in ("64Gi", "512M", "1.5G", "128Mi", "68719476736"):
        assert config(tmp_path, memory=memory).memory == memory


def test_every_option_of_a_scheduler_is_a_field_of_its_config() -> None:
    assert SCHEDULERS.keys() == SCHEDULER_OPTIONS.keys()
    for kind, options in SCHEDULER_OPTIONS.items():
        assert set(options) == set(scheduler(kind).CONFIG.model_fields), kind


def test_options_of_kubernetes_need_kubernetes(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").touch()
    response = CliRunner().invoke(cli, ["train", str(tmp_path / "recipe.yaml"), "--claim", "x:/x"])
    assert response.exit_code == 2
    assert "--claim needs --on kubernetes" in response.output
