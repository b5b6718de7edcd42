"""Damage to checkpoints: every kind of file truncated, altered or gone, in the newest one and in the newest two."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from dsrun.runs.folder import RunFolder
from tests.faults.harness import SAMPLES, Bench, Result, read_records
from tests.faults.oracle import findings

KINDS = {
    "weights": "model*.safetensors",
    "optimizer shard": "global_step*/*optim_states.pt",
    "model states": "global_step*/*model_states.pt",
    "latest": "latest",
    "trainer state": "trainer_state.json",
    "scheduler": "scheduler.pt",
    "random state": "rng_state_0.pth",
    "config": "config.json",
    "tokenizer": "tokenizer.json",
    "manifest": "manifest.json",
}


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x10
    path.write_bytes(content)


def delete(path: Path) -> None:
    path.unlink()


WAYS: dict[str, Callable[[Path], None]] = {"truncated": truncate, "a bit flipped": flip, "deleted": delete}


def damages() -> list[tuple[str, str, int]]:
    """Kind of file, way of damage, and how many of the newest checkpoints have it: the arguments of `resume_after`."""
    found = [(kind, way, 1) for kind in KINDS for way in WAYS]
    return found + [(kind, "a bit flipped", 2) for kind in ("weights", "optimizer shard", "trainer state")]


def resume_after(bench: Bench, kind: str, way: str, checkpoints: int) -> Result:
    """Damage, resume, and compare with the undisturbed run: an older checkpoint has to be taken, and said why."""
    which = "newest" if checkpoints == 1 else f"newest {checkpoints}"
    result = Result(f"{kind} {way} in the {which}")
    run = bench.folder / f"damage-{kind}-{way}-{checkpoints}".replace(" ", "-")
    shutil.copytree(bench.half, run)
    newest = [path for _, path in RunFolder(run).checkpoints()][:checkpoints]
    for checkpoint in newest:
        files = sorted(checkpoint.glob(KINDS[kind]))
        if not files:
            result.wrong.append(f"{checkpoint.name} contains no {KINDS[kind]}")
            return result
        WAYS[way](files[0])
    done = bench.train(run)
    result.codes.append(done.returncode)
    if done.returncode != 0:
        result.wrong.append(f"exit code {done.returncode}: {done.stderr.strip().splitlines()[-1:]}")
    elif "passed over" not in done.stderr:
        result.wrong.append("no word about the damage")
    resumed = [each for each in read_records(run / "events.jsonl") if each["kind"] == "resume"]
    if resumed and resumed[-1]["path"] in {path.name for path in newest}:
        result.wrong.append(f"went on from the damaged {resumed[-1]['path']}")
    if not result.wrong:
        result.wrong += findings(run, bench.whole, samples=SAMPLES)
        shutil.rmtree(run)
    return result
