"""`dsrun render-k8s`: its options are those of KubernetesSpec and of render.toml. manifest.py has what it does."""

from dsrun.cli.options import RenderCommand, declaration
from dsrun.kubernetes.options import KubernetesSpec

command = RenderCommand(
    **declaration(__file__),
    spec=KubernetesSpec,
    noun="YAML",
    section="k8s",
    callback="dsrun.cli.kubernetes.manifest:run",
)
