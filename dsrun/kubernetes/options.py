"""Every option of a Kubernetes job, declared once: the rest is derived from these fields and from options.toml."""

from dataclasses import dataclass

from dsrun.options import described


@described(__file__)
@dataclass(frozen=True, kw_only=True)
class KubernetesSpec:
    """What is asked of a job; `dsrun.kubernetes.objects.render_objects` makes its objects."""

    kind: str = "job"
    name: str | None = None
    namespace: str | None = None
    label: tuple[str, ...] = ()
    annotation: tuple[str, ...] = ()
    nodes: int = 1
    gpus_per_node: int | None = None
    gpu_resource: str = "nvidia.com/gpu"
    nproc: int | None = None
    cpus: str | None = None
    memory: str | None = None
    shm: str | None = None
    rdma: tuple[str, ...] = ()
    queue: str | None = None
    priority_class: str | None = None
    scheduler: str | None = None
    node_selector: tuple[str, ...] = ()
    toleration: tuple[str, ...] = ()
    spread: bool = False
    grace: int = 600
    max_pod_failures: int = 3
    max_restarts: int | None = None
    elastic: str | None = None
    rendezvous_timeout: int | None = None
    deadline: int | None = None
    ttl: int | None = None
    notify: tuple[str, ...] = ()
    image: str | None = None
    image_pull_policy: str | None = None
    image_pull_secret: tuple[str, ...] = ()
    workdir: str | None = None
    env: tuple[str, ...] = ()
    secret: tuple[str, ...] = ()
    claim: str = "dsrun-runs"
    claim_size: str | None = None
    storage_class: str | None = None
    mount: tuple[str, ...] = ()
    user: int = 1000
    run_as_root: bool = False
    service_account: str | None = None
    patch: tuple[str, ...] = ()
