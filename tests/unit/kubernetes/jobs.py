"""Specs and objects of `dsrun render-k8s`, and what Kubernetes would say of them."""

from __future__ import annotations

from functools import cache
from typing import Any

import kubernetes_validate
from kubeflow_trainer_api import models

from dsrun.kubernetes.objects import render_objects
from dsrun.kubernetes.options import KubernetesSpec
from dsrun.kubernetes.spec import make_spec, run_file_value
from dsrun.kubernetes.workload import TrainingWorkload, completed

KINDS = ("job", "jobset", "trainjob")
TRAINING = TrainingWorkload(words=("dsrun", "train", "--model", "t5-large"), name="t5-large", output="ro")
SCRIPT = TrainingWorkload(words=("python", "my_train.py", "--lr", "1e-4", "it's $(HOME)"), name="my_train")
# A job with every option that goes with the others.
EVERYTHING: dict[str, Any] = {
    "name": "ro",
    "namespace": "nlp",
    "label": ["example.org/team=nlp"],
    "annotation": ["example.org/note=for the paper: it's 100% #1"],
    "nodes": "4",
    "elastic": "3:4",
    "gpus_per_node": "8",
    "nproc": "4",
    "cpus": "500m",
    "memory": "200Gi",
    "shm": "32Gi",
    "rdma": ["rdma/hca_shared_devices_a=2", "vpc.amazonaws.com/efa=1"],
    "gpu_resource": "amd.com/gpu",
    "queue": "training",
    "priority_class": "high",
    "scheduler": "volcano",
    "node_selector": ["gpu=a100"],
    "toleration": ["nvidia.com/gpu", "team=nlp:NoExecute", "spot:NoSchedule"],
    "spread": "true",
    "grace": "1800",
    "max_pod_failures": "0",
    "max_restarts": "5",
    "rendezvous_timeout": "900",
    "deadline": "86400",
    "ttl": "604800",
    "notify": ["env:SLACK_URL"],
    "image": "registry.example.org:5000/nlp/dsrun:1",
    "image_pull_policy": "Always",
    "image_pull_secret": ["registry"],
    "workdir": "/workspace",
    "env": ["NCCL_DEBUG=INFO", "GREETING=it's $5, $(HOME)"],
    "secret": ["HF_TOKEN=hub:token", "SLACK_URL=slack:url"],
    "claim": "shared:/shared",
    "claim_size": "500Gi",
    "storage_class": "nfs.csi",
    "mount": ["datasets:/data:ro", "models:/models"],
    "user": "2000",
    "service_account": "trainer",
}
_MODELS = {
    "JobSet": models.JobsetV1alpha2JobSet,
    "TrainJob": models.TrainerV1alpha1TrainJob,
    "TrainingRuntime": models.TrainerV1alpha1TrainingRuntime,
}


def spec_of(**options: Any) -> KubernetesSpec:
    """The spec of these keys of run.yaml's k8s section."""
    return make_spec(
        run_file_value(key, words if isinstance(words, list) else [words], f"k8s.{key}")
        for key, words in options.items()
    )


def objects_of(workload: TrainingWorkload = TRAINING, **options: Any) -> list[dict[str, Any]]:
    return render_objects(completed(spec_of(**options), workload), workload)


def job_of(objects: list[dict[str, Any]]) -> dict[str, Any]:
    """The spec of the Job among the objects, or within one of them."""
    spec = next(each for each in objects if each["kind"] in ("Job", "JobSet", "TrainingRuntime"))["spec"]
    spec = spec.get("template", {}).get("spec", spec) if "mlPolicy" in spec else spec
    return spec["replicatedJobs"][0]["template"]["spec"] if "replicatedJobs" in spec else spec


def pod_of(objects: list[dict[str, Any]]) -> dict[str, Any]:
    return job_of(objects)["template"]["spec"]


def container_of(objects: list[dict[str, Any]]) -> dict[str, Any]:
    (container,) = pod_of(objects)["containers"]
    return container


@cache
def versions() -> tuple[str, str]:
    """The oldest version of Kubernetes that docs/kubernetes.md names, and the newest one whose schemas are here."""
    return "1.29", kubernetes_validate.latest_version().rpartition(".")[0]


def check_object(each: dict[str, Any], oldest: str | None = None) -> None:
    """Raise for an object that its API does not know: an unknown field, a missing one, a value of another type.

    `oldest` is for one that needs a newer Kubernetes than others. The models of the others leave out what they do not
    know, so that what comes back must be all.
    """
    if each["kind"] in _MODELS:
        model = _MODELS[each["kind"]].from_dict(each)
        assert model is not None
        assert model.to_dict() == each
    else:
        for version in (oldest or versions()[0], versions()[1]):
            assert kubernetes_validate.validate(each, version, strict=True) == version
