"""What logs, checkpoints and job names hold reaches the terminal without control characters."""

import json
import subprocess
import sys

import pytest

from dsrun.runs.folder import RunFolder
from dsrun.runs.manifest import MANIFEST, write_manifest
from tests.forkserver.client import LIGHT

# Writes to the clipboard (OSC 52), sets the title (OSC 0), clears the screen (C1), adds a line, turns the direction.
HOSTILE = "\x1b]52;c;aGk=\x07 \x1b]0;title\x07 \x9b2J \r\nerror: false\x85 \u202egpj"
BAD = set(HOSTILE) - set("\n") - {chr(code) for code in range(0x20, 0x7F)}


@pytest.fixture
def run(tmp_path):
    run = RunFolder(tmp_path / "run")
    for step in (10, 20):
        checkpoint = run.checkpoint(step)
        checkpoint.mkdir(parents=True)
        (checkpoint / "config.json").write_text(json.dumps({"model_type": HOSTILE, "architectures": [HOSTILE]}))
        (checkpoint / "weights.bin").write_bytes(bytes(10))
        write_manifest(checkpoint, {"step": step, "world_size": 1, "versions": {HOSTILE: HOSTILE}})
    return run


def shown(*args):
    """What a command prints on both streams."""
    argv = [sys.executable, "-m", "dsrun", *map(str, args)]
    done = LIGHT.run(argv, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL)
    text = done.stdout + done.stderr
    assert "Traceback" not in text
    return text


@pytest.mark.parametrize("args", [("list",), ("inspect",), ("verify",), ("verify", "20")])
def test_checkpoint_commands_escape_foreign_text(run, args):
    manifest = run.checkpoint(20) / MANIFEST
    content = json.loads(manifest.read_text())
    content["files"] = {HOSTILE: next(iter(content["files"].values()))}
    del content["crc32"]
    manifest.write_text(json.dumps(content))
    command, *step = args
    text = shown("checkpoint", command, run.path, *step)
    assert text.strip()
    assert not BAD & set(text)
    assert "\nerror: false" not in text


@pytest.mark.parametrize("known", [True, False])
def test_diagnose_escapes_text_of_log(tmp_path, known):
    """Whether the cause is known or the exception is shown as it is."""
    what = "torch.cuda.OutOfMemoryError: CUDA out of memory. " if known else "SomethingError: "
    log = tmp_path / "train.log"
    log.write_text(f"Traceback (most recent call last):\n  File {what!r}\n{what}{HOSTILE.partition(chr(13))[0]}\n")
    text = shown("diagnose", log)
    assert what.strip() in text
    assert not BAD & set(text)
