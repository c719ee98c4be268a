"""A run as a TrainJob of Kubeflow's Trainer, with its ClusterTrainingRuntime, for clusters that require them.

    TrainJob JOB --> JobSet JOB --> Indexed Job JOB-node-0 --> pod I, JOB-node-0-I.JOB

The pods are those of `job`. A TrainJob's size is fixed: the run neither grows nor shrinks. With the status server of
the Trainer, `kubectl get trainjob` shows the run's progress (`watch`).
"""

from collections.abc import Sequence

from assay.launchers.kubernetes.client import Object
from assay.launchers.kubernetes.job import JobSize, KubernetesConfig, job_name, job_rules, pod_spec, run_key
from assay.records.run import Run
from assay.store.home import Home

API, STEP_LABEL = "trainer.kubeflow.org/v1alpha1", "trainer.kubeflow.org/trainjob-ancestor-step"


def trainjob_objects(
    home: Home, run: Run, config: KubernetesConfig, *, namespace: str, world_size: int, options: Sequence[str]
) -> tuple[Object, Object]:
    """Return the runtime and the TrainJob of a run."""
    size, name = JobSize.of(config, world_size, options), job_name(run)
    pod = pod_spec(
        home,
        run,
        config.model_copy(update={"service_account": None}),
        size,
        service=name,
        namespace=namespace,
        options=options,
        lead=f"{name}-node-0-0.{name}",
    )
    del pod["subdomain"]  # JobSet sets its own
    node = {
        "name": "node",
        "template": {
            "metadata": {"labels": {STEP_LABEL: "trainer"}},
            "spec": {**job_rules(), "template": {"spec": pod}},
        },
    }
    runtime = {
        "apiVersion": API,
        "kind": "ClusterTrainingRuntime",
        "metadata": {"name": name, "labels": {"trainer.kubeflow.org/framework": "assay"}},
        "spec": {
            "mlPolicy": {"numNodes": size.most},
            "template": {"spec": {"network": {"publishNotReadyAddresses": True}, "replicatedJobs": [node]}},
        },
    }
    labels = {"kueue.x-k8s.io/queue-name": config.queue} if config.queue else {}
    trainjob = {
        "apiVersion": API,
        "kind": "TrainJob",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": labels,
            "annotations": {"assay/run": run_key(run)},
        },
        "spec": {
            "runtimeRef": {"apiGroup": "trainer.kubeflow.org", "kind": "ClusterTrainingRuntime", "name": name},
            "trainer": {"numNodes": size.most},
        },
    }
    return runtime, trainjob
