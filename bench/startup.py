"""How long the light commands take: the CPU time of each against bare click, and help against `accelerate --help`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.timing import children_cpu, interleaved, ratio_line

CLICK = "python -c 'import click'"
ACCELERATE = "accelerate --help"
LIMIT = 3.0
"""`dsrun --help` has to stay below this many times the interpreter plus click, in wall time."""
GOAL = 1.7
"""Of every light command in CPU time, as a ratio: 0.06 s, the interpreter plus click being taken for 0.035 s."""
GOAL_S = 0.06
# Llama 3 8B, whose shapes are planned without torch.
MODEL = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 8192,
}  # fmt: skip
LIGHT = (
    "--help", "config --help", "plan --help", "render-slurm --help", "config --zero 3",
    "plan --model MODEL --count shapes --gpus a100-80:8", "render-slurm --nodes 4 -- python train.py",
    "render-slurm --nodes 4 -- train --model demo-t5 --zero 2",
)  # fmt: skip
# As installed console scripts do it, whether or not this environment has the script.
RUN_MAIN = "import sys; from dsrun.cli.main import main; sys.argv = ['dsrun', *sys.argv[1:]]; main()"


def main() -> bool:
    """Print the ratios; whether the limit holds and every goal is met."""
    help_holds = _against_accelerate()
    with TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(MODEL))
        return _light(folder) and help_holds


def _against_accelerate() -> bool:
    commands = {
        CLICK: [sys.executable, "-c", "import click"],
        "dsrun --help": [sys.executable, "-c", RUN_MAIN, "--help"],
        "dsrun train --help": [sys.executable, "-c", RUN_MAIN, "train", "--help"],
        ACCELERATE: [str(Path(sys.executable).with_name("accelerate")), "--help"],
    }
    times = interleaved(commands)
    for name in ("dsrun --help", "dsrun train --help"):
        print(ratio_line(times, name, CLICK))
        print(ratio_line(times, name, ACCELERATE))
    holds = times["dsrun --help"] < LIMIT * times[CLICK]
    print(f"dsrun --help stays below {LIMIT:g} × bare click: {'yes' if holds else 'NO'}")
    return holds


def _light(folder: str) -> bool:
    """The CPU time of each light command, `folder` being that of the model's config.json."""
    commands = {CLICK: [sys.executable, "-c", "import click"]}
    for line in LIGHT:
        words = [folder if word == "MODEL" else word for word in line.split()]
        commands[f"dsrun {line}"] = [sys.executable, "-c", RUN_MAIN, *words]
    # With byte code, as an installation has it, and without a SLURM that would be asked for its nodes.
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    times = interleaved(commands, clock=children_cpu, environ={**environ, "PATH": folder})
    print(f"CPU time: {times[CLICK] * 1000:.0f} ms for {CLICK}; goal {GOAL_S * 1000:.0f} ms, or {GOAL:g} × that")
    met = True
    for name in [each for each in commands if each != CLICK]:
        ratio = times[name] / times[CLICK]
        met &= ratio <= GOAL
        verdict = "met" if ratio <= GOAL else "MISSED"
        absolute = "met" if times[name] <= GOAL_S else "MISSED"
        print(f"{ratio:5.2f} × ({times[name] * 1000:.0f} ms) for {name}: ratio {verdict}, seconds {absolute}")
    return met
