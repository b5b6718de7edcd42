"""`dsrun render-k8s` as a user calls it: YAML on stdout, notes on stderr."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import fields
from pathlib import Path

import pytest
import yaml

from dsrun.kubernetes.options import KubernetesSpec
from dsrun.options import flag_of
from tests.unit.kubernetes.jobs import check_object, container_of, pod_of

PAGE = Path(__file__).parents[2] / "docs" / "kubernetes.md"
EXAMPLES = re.findall(r"^\$ dsrun (render-k8s .*?)(?: \| kubectl apply -f -)?$", PAGE.read_text(), re.MULTILINE)


def objects(done) -> list[dict]:
    """The objects that were printed, all of them valid."""
    assert done.returncode == 0, done.stderr
    found = list(yaml.safe_load_all(done.stdout))
    for each in found:
        check_object(each)
    return found


def words(done) -> list[str]:
    """What the pods run after `dsrun launch … --`."""
    args = container_of(objects(done))["args"]
    return args[args.index("--") + 1 :]


def test_render_k8s_four_nodes_train(dsrun, here):
    done = dsrun("render-k8s", "--nodes", "4", "--gpus-per-node", "8", "--", "train", "--model", "t5-large")
    service, job = objects(done)
    assert (service["kind"], job["kind"], job["spec"]["completions"]) == ("Service", "Job", 4)
    container = container_of([service, job])
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "8"}
    assert words(done) == ["dsrun", "train", "--model", "t5-large"]
    assert container["args"][:6] == ["--nodes", "4", "--master-addr", "t5-large-0.t5-large", "--nproc", "8"]
    assert re.match(r"# Rendered by dsrun \S+: dsrun render-k8s --nodes 4 ", done.stdout)
    assert "note: the claim dsrun-runs must exist, and several machines be able to mount it" in done.stderr
    assert list(here.iterdir()) == []


def test_render_k8s_default_trains_demo(dsrun):
    done = dsrun("render-k8s")
    assert words(done) == ["dsrun", "train", "--model", "demo-t5", "--zero", "2"]
    assert "note: no command after --, and no run.yaml here: the job trains the demo\n" in done.stderr


@pytest.mark.parametrize("command", ["render-k8s", "render-slurm"])
def test_rendering_into_hyphen_is_stdout(dsrun, here, command):
    done = dsrun(command, "-o", "-", "--", "./x")
    assert done.returncode == 0, done.stderr
    assert "./x" in done.stdout
    assert list(here.iterdir()) == []


def test_render_k8s_writes_utf8_in_any_locale(dsrun, environ):
    """YAML is UTF-8, whatever the terminal takes."""
    environ |= {"PYTHONIOENCODING": "latin-1:strict"}
    done = dsrun("render-k8s", "--annotation", "example.org/note=ăé", "--", "./x")
    assert objects(done)[0]["metadata"]["annotations"] == {"example.org/note": "ăé"}


def test_render_k8s_freezes_run_yaml(dsrun, here):
    """run.yaml and the DeepSpeed JSON are not in the pods, which get what both say now."""
    (here / "ds.json").write_text('{"zero_optimization": {"stage": 2}, "bf16": {"enabled": true}}')
    (here / "run.yaml").write_text(
        "train: {model: demo-t5, output: out dir, deepspeed: ds.json, bf16: true}\nlaunch: {max_restarts: 7}\n"
        "k8s:\n  nodes: 2\n  gpus: 4\n  env: {NCCL_DEBUG: INFO, LEVEL: 0o7}\n  secrets: {HF_TOKEN: 'hub:token'}\n"
        "  mounts: [data:/data:ro]\n  spread: yes\n  memory: 64Gi\n"
    )
    done = dsrun("render-k8s", "--nodes", "3")
    found = objects(done)
    args, pod = container_of(found)["args"], pod_of(found)
    assert args[args.index("--output") + 1] == "/runs/out dir"
    assert args[args.index("--max-restarts") + 1] == "7"
    assert args[args.index("--nodes") + 1] == "3"
    ran = words(done)
    assert "ds.json" not in " ".join(ran)
    assert json.loads(ran[ran.index("--deepspeed") + 1])["zero_optimization"]["stage"] == 2
    assert {"--config", "--output"}.isdisjoint(ran)
    assert {"name": "LEVEL", "value": "0o7"} in container_of(found)["env"]
    assert pod["affinity"]
    assert "options from the k8s section of run.yaml: nodes, gpus_per_node, env, secret, mount, spread" in done.stderr


def test_other_commands_pass_over_k8s_section(dsrun, here):
    (here / "run.yaml").write_text("train: {model: demo-t5}\nk8s: {nodes: 4, nonsense: 1}\nslurm: {nodes: 3}\n")
    assert dsrun("train", "--config", "run.yaml", "--explain").returncode == 0
    assert "#SBATCH --nodes=3" in dsrun("render-slurm").stdout


def test_files_of_the_job_need_not_be_here(dsrun):
    """Data and models are in the pods, or on their claims."""
    files = ["--model", "/models/t5", "--train-file", "/data/x.jsonl"]
    done = dsrun("render-k8s", "--mount", "data:/data", "--", "train", *files)
    assert words(done) == ["dsrun", "train", *files]


def test_any_program_runs_as_it_is_given(dsrun):
    for given in (
        ["python", "my_train.py", "--nodes", "9", "it's $(HOME)"],
        ["./program", "-v"],
        ["python", "-u", "x"],
    ):
        assert words(dsrun("render-k8s", "--", *given)) == [word.replace("$", "$$") for word in given]


@pytest.mark.parametrize("kind", ["job", "jobset", "trainjob"])
def test_render_k8s_kinds(dsrun, kind):
    done = dsrun("render-k8s", "--kind", kind, "--nodes", "2", "--name", "mine", "--", "./x")
    assert {each["metadata"]["name"] for each in objects(done)} == {"mine"}


def test_render_k8s_output_needs_force_to_overwrite(dsrun, here):
    assert dsrun("render-k8s", "-o", "job.yaml").stdout == ""
    first = (here / "job.yaml").read_text()
    assert first.startswith("# Rendered by dsrun ")
    assert not (here / "job.yaml").stat().st_mode & 0o111
    done = dsrun("render-k8s", "--nodes", "2", "-o", "job.yaml")
    assert (done.returncode, (here / "job.yaml").read_text()) == (2, first)
    assert dsrun("render-k8s", "--nodes", "2", "-o", "job.yaml", "--force").returncode == 0
    assert "kind: Service\n" in (here / "job.yaml").read_text()


def test_render_k8s_help_lists_every_option(dsrun):
    flags = set(re.findall(r"--[a-z0-9-]+", dsrun("render-k8s", "--help").stdout))
    assert {flag_of(each) for each in fields(KubernetesSpec)} | {"--output", "--force", "--config"} <= flags


@pytest.mark.parametrize("line", EXAMPLES)
def test_docs_render_k8s_examples_render(dsrun, line):
    assert objects(dsrun(*shlex.split(line)))


def test_docs_have_examples_of_render_k8s():
    assert len(EXAMPLES) >= 5


def test_render_k8s_patches_its_objects(dsrun, here):
    """By files and mappings of the command line, in their order."""
    (here / "patch.yaml").write_text(
        "kind: Pod\nspec: {runtimeClassName: kata, priority: 1}\n---\nkind: Job\nspec: {suspend: true}\n"
    )
    done = dsrun("render-k8s", "--patch", "patch.yaml", "--patch", "{kind: Pod, spec: {priority: 2}}", "--", "./x")
    (job,) = objects(done)
    assert job["spec"]["suspend"] is True
    assert (pod_of([job])["runtimeClassName"], pod_of([job])["priority"]) == ("kata", 2)


@pytest.mark.parametrize(
    "patch",
    [
        "patch.yaml",
        "[patch.yaml, other.yaml]",
        "{kind: Pod, spec: {runtimeClassName: kata}}",
        "\n    kind: Pod\n    spec: {runtimeClassName: kata}",
        "\n  - patch.yaml\n  - kind: Pod\n    metadata: {annotations: {a.org/since: 2026-01-01, a.org/grüße: 🙂}}",
    ],
)
def test_run_yaml_has_patches(dsrun, here, patch):
    """A file, a mapping, or a list of both."""
    (here / "patch.yaml").write_text("kind: Pod\nspec: {runtimeClassName: kata}\n")
    (here / "other.yaml").write_text("# nothing\n")
    (here / "run.yaml").write_text(f"train: {{model: demo-t5}}\nk8s:\n  patch: {patch}\n")
    found = objects(dsrun("render-k8s"))
    assert pod_of(found)["runtimeClassName"] == "kata"
    if "grüße" in patch:
        annotations = found[-1]["spec"]["template"]["metadata"]["annotations"]
        assert annotations == {"a.org/since": "2026-01-01", "a.org/grüße": "🙂"}


def test_render_k8s_rdma_takes_huge_pages(dsrun):
    rdma = ["--rdma", "vpc.amazonaws.com/efa=32", "--rdma", "hugepages-2Mi=5120Mi"]
    limits = container_of(objects(dsrun("render-k8s", "--memory", "64Gi", *rdma, "--", "./x")))["resources"]["limits"]
    assert limits["hugepages-2Mi"] == "5120Mi"
