"""`dsrun checkpoint`: tables, verdicts and contents, on a machine that has no torch."""

import json
import shutil
import struct
import subprocess
import sys

import pytest

from dsrun.cli import checkpoint as checkpoint_command
from dsrun.cli.options import declared_in
from dsrun.findings.finding import text_of
from dsrun.runs.commit import HIDDEN
from dsrun.runs.folder import RunFolder
from dsrun.runs.manifest import verify, write_manifest


def safetensors(shapes, dtype="F32"):
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in shapes.items():
        size = 4
        for each in shape:
            size *= each
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(end)


def save(folder, step, *, best=None):
    shards = folder / f"global_step{step}"
    shards.mkdir(parents=True)
    for rank in range(2):
        (shards / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt").write_bytes(bytes(3000))
        (folder / f"rng_state_{rank}.pth").write_bytes(bytes(100))
    (shards / "mp_rank_00_model_states.pt").write_bytes(bytes(1000))
    (folder / "model.safetensors").write_bytes(safetensors({"wte": [8, 4], "head": [4]}))
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "architectures": ["LlamaForCausalLM"]}))
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": step, "best_global_step": best}))
    (folder / "latest").write_text(f"global_step{step}")
    facts = {
        "step": step, "world_size": 2, "zero_stage": 2, "global_batch": 64, "micro_batch": 8, "accumulation": 4,
        "seed": 42, "versions": {"torch": "2.13.0"}, "config_sha256": "c" * 64, "tokenizer_sha256": "d" * 64,
    }  # fmt: skip
    write_manifest(folder, facts)
    return folder


@pytest.fixture
def run(tmp_path):
    run = RunFolder(tmp_path / "run")
    for step in (10, 20, 30):
        save(run.checkpoint(step), step, best=10)
    (run.checkpoint(30) / "latest").write_text("?")
    (run.path / HIDDEN / "checkpoint-40").mkdir(parents=True)
    return run


def dsrun(*args):
    argv = [sys.executable, "-m", "dsrun", "checkpoint", *map(str, args)]
    return subprocess.run(argv, capture_output=True, text=True, check=False)


def test_checkpoint_list_shows_state_of_each(run):
    done = dsrun("list", run.path)
    assert done.returncode == 0, done.stderr
    head, *rows = [line.split() for line in done.stdout.splitlines()]
    assert head == ["STEP", "SIZE", "AGE", "ZERO", "RANKS", "STATE"]
    assert [row[0] for row in rows] == ["40", "30", "20", "10"]
    # Not the age of a file from 1970, as there is no file yet.
    assert rows[0][4:] in (["s", "saving"], ["min", "saving"])
    assert "damaged: latest: 1 byte instead of 13" in done.stdout
    assert rows[2][-3:] == ["2", "2", "complete"]
    assert rows[3][-2:] == ["complete,", "best"]


def test_checkpoint_list_json(run):
    output = json.loads(dsrun("list", run.path, "--format", "json").stdout)
    assert output["version"] == 1
    states = {entry["step"]: entry["state"] for entry in output["checkpoints"]}
    assert states == {40: "saving", 30: "damaged", 20: "complete", 10: "complete"}
    (best,) = [entry for entry in output["checkpoints"] if entry["best"]]
    assert (best["step"], best["zero_stage"], best["world_size"]) == (10, 2, 2)
    assert best["size"] == sum(
        path.stat().st_size for path in run.checkpoint(10).rglob("*") if path.is_file() and path.name != "manifest.json"
    )


def test_checkpoint_verify_reads_contents_and_exits_3(run):
    shard = run.checkpoint(20) / "global_step20" / "zero_pp_rank_1_mp_rank_00_optim_states.pt"
    data = bytearray(shard.read_bytes())
    data[1500] ^= 1
    shard.write_bytes(data)
    done = dsrun("verify", run.path)
    assert done.returncode == 3
    differs = text_of("checkpoint_corrupt.differs.message")
    assert f"error {shard}: {differs} [checkpoint_corrupt]\n    " in done.stdout
    assert f"{run.checkpoint(10)}: intact" in done.stdout
    assert dsrun("verify", run.checkpoint(10)).returncode == 0
    output = json.loads(dsrun("verify", run.checkpoint(20), "--format", "json").stdout)
    (checked,) = output["checkpoints"]
    assert checked["damaged"]
    (finding,) = checked["findings"]
    assert (finding["level"], finding["code"], finding["where"]) == ("error", "checkpoint_corrupt", str(shard))
    assert finding["message"] == f"{shard.name}: {differs}"


def test_checkpoint_rotated_during_verify_is_not_damaged(run, monkeypatch, capsys):
    """A checkpoint that training deletes meanwhile is not damaged."""
    (run.checkpoint(30) / "latest").write_text("global_step30")

    def read_while_training_rotates(path):
        if path == run.checkpoint(30):
            shutil.rmtree(run.checkpoint(10))
        return verify(path)

    monkeypatch.setattr(checkpoint_command, "read_through", read_while_training_rotates)
    assert declared_in("checkpoint.toml").main(["verify", str(run.path)], standalone_mode=False) == 0
    assert [line.split(": ")[1] for line in capsys.readouterr().out.splitlines()] == ["intact", "intact"]


def test_checkpoint_inspect_takes_newest_complete(run):
    done = dsrun("inspect", run.path)
    assert done.returncode == 0, done.stderr
    lines = dict(line.split(":", 1) for line in done.stdout.splitlines())
    lines = {name: value.strip() for name, value in lines.items()}
    assert lines["step"] == "20"
    assert lines["model"] == "LlamaForCausalLM"
    assert lines["weights"] == "36 parameters in 2 tensors, F32"
    assert lines["parallel"] == "ZeRO-2 on 2 ranks"
    assert lines["batch"] == "64 = 8 × 2 ranks × 4 steps"
    assert lines["  optimizer"] == "5.9 KiB in 2"
    assert lines["  model states"] == "1000 B in 1"
    assert lines["  random states"] == "200 B in 2"
    assert lines["tokenizer"] == "sha256 dddddddddddddddd"


def test_checkpoint_inspect_json(run):
    output = json.loads(dsrun("inspect", run.checkpoint(10), "--format", "json").stdout)["checkpoint"]
    assert output["architecture"] == "LlamaForCausalLM"
    assert output["weights"]["by_dtype"] == {"F32": 36}
    assert output["facts"]["global_batch"] == 64
    assert output["entry"]["best"]


def test_checkpoint_inspect_reports_empty_weights(run):
    (run.checkpoint(20) / "model.safetensors").write_bytes(safetensors({"wte": [0]}))
    assert "1 tensors are EMPTY, wte first" in dsrun("inspect", run.checkpoint(20)).stdout


@pytest.mark.parametrize(
    ("place", "message"),
    [("nowhere", "does not exist"), ("empty", "contains no checkpoint"), ("run", "no complete")],
)
def test_checkpoint_inspect_without_checkpoint(run, tmp_path, place, message):
    (tmp_path / "empty").mkdir()
    for step, _ in run.checkpoints():
        (run.checkpoint(step) / "manifest.json").unlink()
    done = dsrun("inspect", tmp_path / place)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_checkpoint_without_manifest_is_foreign(run):
    (run.checkpoint(20) / "manifest.json").unlink()
    states = {
        e["step"]: e["state"] for e in json.loads(dsrun("list", run.path, "--format", "json").stdout)["checkpoints"]
    }
    assert states[20] == "foreign"
    assert dsrun("verify", run.checkpoint(20)).returncode == 3


def test_checkpoint_damaged_safetensors_header_is_one_line(run):
    (run.checkpoint(20) / "model.safetensors").write_bytes(b"\xff" * 40)
    done = dsrun("inspect", run.checkpoint(20))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "not a complete safetensors file" in done.stderr


def test_checkpoint_list_imports_no_heavy_library(run):
    code = (
        "import sys\nfrom dsrun.cli.main import main\n"
        f"sys.argv = ['dsrun', 'checkpoint', 'list', {str(run.path)!r}]\n"
        "try: main()\nexcept SystemExit: pass\n"
        "heavy = {'torch', 'numpy', 'pydantic', 'safetensors', 'transformers'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_checkpoint_verify_of_empty_folder(run):
    shutil.rmtree(run.checkpoint(20))
    run.checkpoint(20).mkdir()
    done = dsrun("verify", run.checkpoint(20))
    assert done.returncode == 3
    assert "no manifest" in done.stdout
