"""Stands in for srun, torchrun, accelerate, deepspeed and python: starts what they would start; python records itself.

Called as `launch_stand_in.py NAME ARGS`.
"""

import json
import os
import subprocess
import sys
from pathlib import Path, PurePosixPath
from string import Template

SWITCHES = {"multi_gpu", "same_network", "no_local_rank", "no_ssh", "standalone", "label", "kill-on-bad-exit"}
SWITCHES |= {"module", "no_python", "m"}


def options(words):
    """Options by name, and the words behind them."""
    found, at = {}, 0
    while at < len(words) and words[at].startswith("-"):
        name, equals, value = words[at].lstrip("-").partition("=")
        at += 1
        if not name:
            break
        name = name.replace("-", "_") if "no" in name or "proc" in name or "num" in name or "rdzv" in name else name
        name = {"N": "nodes", "n": "ntasks"}.get(name, name)
        if not equals and name not in SWITCHES and len(name) > 0:
            value, at = words[at], at + 1
        found[name.replace("-", "_")] = value
    return found, words[at:]


def start(words, **env):
    done = subprocess.run(words, env={**os.environ, **{name: str(value) for name, value in env.items()}}, check=False)
    if done.returncode:
        sys.exit(done.returncode)


def srun(words):
    given, command = options(words)
    nodes = int(given.get("nodes") or os.environ["SLURM_NNODES"])
    each = int(given.get("ntasks_per_node") or os.environ.get("SLURM_NTASKS_PER_NODE", "1"))
    for task in range(nodes * each):
        place = {"SLURM_PROCID": task, "SLURM_LOCALID": task % each, "SLURM_NODEID": task // each}
        start(command, **place, SLURM_NTASKS=nodes * each, SLURM_STEP_ID=0)


def ranks(command, count, env=None, local_rank=None):
    """`count` copies of a Python program or command on this node."""
    nodes, node = int(os.environ["SLURM_NNODES"]), int(os.environ.get("SLURM_NODEID", "0"))
    for local in range(count):
        place = {"RANK": node * count + local, "LOCAL_RANK": local, "WORLD_SIZE": nodes * count}
        filled = [Template(word).safe_substitute(local_rank=local) for word in command]
        if local_rank:
            filled.insert(local_rank, f"--local_rank={local}")
        start(filled, **place, **(env or {}))


def torchrun(words, python):
    given, rest = options(words)
    count = given.get("nproc_per_node", "1")
    head = [] if "no_python" in given else [python, "-m"] if "module" in given or "m" in given else [python]
    ranks([*head, *rest], int(os.environ["GPUS"] if count in ("gpu", "auto") else count))


def accelerate(words, python):
    given, rest = options(words[1:])
    env = {"ACCELERATE_MIXED_PRECISION": given["mixed_precision"]} if "mixed_precision" in given else {}
    if "num_cpu_threads_per_process" in given:
        env["OMP_NUM_THREADS"] = given["num_cpu_threads_per_process"]
    ranks([python, *rest], int(given["num_processes"]) // int(os.environ["SLURM_NNODES"]), env)


def main(path, *words):
    name, words = PurePosixPath(path).name, list(words)
    sibling = str(PurePosixPath(path).parent / "python")
    if name == "srun":
        srun(words)
    elif name == "accelerate":
        accelerate(words, sibling)
    elif name == "deepspeed":
        given, rest = options(words)
        ranks([sibling, *rest], int(given["num_gpus"]), local_rank=None if "no_local_rank" in given else 2)
    elif name == "torchrun":
        torchrun(words, sibling)
    elif words[:3] == ["-m", "dsrun", "launch"]:
        start([path, *words[words.index("python") + 1 :]])
    elif "torch.distributed.run" in words[:3]:
        torchrun(words[words.index("torch.distributed.run") + 1 :], path)
    elif words[:1] != ["-c"]:
        with Path(os.environ["RECORD"]).open("a") as file:
            file.write(json.dumps({"python": path, "argv": words, "env": dict(os.environ)}) + "\n")


main(*sys.argv[1:])
