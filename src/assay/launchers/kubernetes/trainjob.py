"""A run as a TrainJob of Kubeflow's Trainer, with its ClusterTrainingRuntime, for clusters that require them.

    TrainJob JOB --> JobSet JOB --> Indexed Job JOB-node-0 --> pod I, JOB-node-0-I.JOB

The pods are those of `job`. A TrainJob's size is fixed: the run neither grows nor shrinks. With the status server of
the Trainer, `kubectl get trainjob` shows the run's progress (`watch`).
"""

from collections.abc import Sequence

from assay.launchers.kubernetes.client import Object
from assay.launchers.kubernetes.job import KubernetesConfig, objects_of
from assay.records.run import Run
from assay.store.home import Home

API = "trainer.kubeflow.org/v1alpha1"


def trainjob_objects(
    home: Home, run: Run, config: KubernetesConfig, *, name: str, world_size: int, options: Sequence[str]
) -> tuple[Object, Object]:
    """Return the runtime and the TrainJob of a run; `name`: NAMESPACE/NAME."""
    namespace, _, own = name.partition("/")
    fixed = config.model_copy(update={"service_account": None, "queue": None})
    leader = f"{own}-node-0-0.{own}"
    _, job = objects_of(home, run, fixed, name=name, world_size=world_size, options=options, leader=leader)
    num_nodes = job["spec"].pop("parallelism")
    del job["spec"]["completions"], job["spec"]["template"]["spec"]["subdomain"]  # JobSet sets its own
    metadata = {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}}
    node = {"name": "node", "template": {"metadata": metadata, "spec": job["spec"]}}
    runtime = {
        "apiVersion": API,
        "kind": "ClusterTrainingRuntime",
        "metadata": {"name": own, "labels": {"trainer.kubeflow.org/framework": "assay"}},
        "spec": {
            "mlPolicy": {"numNodes": num_nodes},
            "template": {"spec": {"network": {"publishNotReadyAddresses": True}, "replicatedJobs": [node]}},
        },
    }
    trainjob: Object = {
        "apiVersion": API,
        "kind": "TrainJob",
        "metadata": {"name": own, "namespace": namespace},
        "spec": {
            "runtimeRef": {"apiGroup": "trainer.kubeflow.org", "kind": "ClusterTrainingRuntime", "name": own},
            "trainer": {"numNodes": num_nodes},
        },
    }
    if config.queue:
        trainjob["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": config.queue}
    return runtime, trainjob
