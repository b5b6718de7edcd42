"""Which checkpoint may become the final model, and the errors for others."""

import json

import pytest

from dsrun.errors import ToolError, UsageError
from dsrun.runs.manifest import write_manifest
from dsrun.train.checkpoint.verify import check_best


@pytest.fixture
def best(tmp_path):
    folder = tmp_path / "checkpoint-5"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(bytes(500))
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": 5}))
    return folder


def check(folder, *, trust=False):
    check_best(folder, trust=trust, beat=lambda: None)


def flip(file):
    data = bytearray(file.read_bytes())
    data[100] ^= 1
    file.write_bytes(data)


def test_intact_best_checkpoint_accepted(best):
    """A best checkpoint that is as it was saved may be loaded."""
    write_manifest(best, {})
    check(best)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (flip, "model.safetensors: contents differ from the manifest"),
        (lambda file: file.unlink(), "model.safetensors: the file is missing"),
    ],
)
def test_damaged_best_checkpoint_rejected(best, damage, words):
    """The error for a damaged best checkpoint names a way out."""
    write_manifest(best, {})
    damage(best / "model.safetensors")
    with pytest.raises(ToolError) as caught:
        check(best)
    assert caught.value.message == f"the best checkpoint, checkpoint-5, cannot be loaded: {words}"
    assert "--load-best-model-at-end false" in caught.value.fix
    assert caught.value.cause == "checkpoint_corrupt"


def test_missing_best_checkpoint_rejected(tmp_path):
    with pytest.raises(ToolError, match="checkpoint-7, cannot be loaded: it has no manifest"):
        check(tmp_path / "checkpoint-7")


def test_best_checkpoint_of_plain_transformers_accepted(best):
    """The best checkpoint of plain Transformers has no manifest, and is fine."""
    check(best)
    (best / "latest").write_text("global_step5")
    with pytest.raises(UsageError, match="`latest` names 'global_step5'"):
        check(best)


def test_untrusted_best_checkpoint_rejected(best):
    """A best checkpoint that others may write to is not loaded."""
    write_manifest(best, {})
    (best / "model.safetensors").chmod(0o666)
    with pytest.raises(UsageError, match=r"not trusted.*--trust"):
        check(best)
    check(best, trust=True)
