"""`dsrun render-k8s`: its options, which are those of KubernetesSpec. What it does is in manifest.py."""

import click

from dsrun.cli.options import RenderCommand
from dsrun.kubernetes.options import KubernetesSpec

HELP = """Write the Kubernetes objects of a job: `dsrun render-k8s --nodes 4 --gpus-per-node 8 | kubectl apply -f -`.

The command after `--` runs on every GPU: `-- train --model …`, `-- python my_train.py …`, `-- ./program …`.
The default is run.yaml of this folder, or else the demo.
"""

command = RenderCommand(
    name="render-k8s",
    help=HELP,
    spec=KubernetesSpec,
    noun="YAML",
    section="k8s",
    callback="dsrun.cli.kubernetes.manifest:run",
    params=[click.Option(["--force"], is_flag=True, help="replace the file")],
    epilog="docs/kubernetes.md explains every option.",
)
