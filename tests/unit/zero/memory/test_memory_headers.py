"""What the headers of saved weights say of a model, against its parameters in torch and the shapes of its family."""

from __future__ import annotations

import pytest

from dsrun.models.folder import find
from dsrun.zero.memory.model.architecture import LayerWeight
from dsrun.zero.memory.model.count import count, describe
from dsrun.zero.memory.model.shapes import families
from dsrun.zero.memory.model.stored import stored_architecture
from dsrun.zero.memory.model.widths import architecture_of
from tests.unit.zero.memory.tiny_models import BART, MODELS, matrices, plain, saved


@pytest.mark.parametrize("name", MODELS)
def test_headers_tell_the_model_that_torch_loads(name, tmp_path):
    from dsrun.train.model.zero_auto import report

    model = saved(tmp_path, *MODELS[name])
    found = find(str(tmp_path))
    stored = stored_architecture(found)
    made = report(model)
    tensors = (LayerWeight(name, tuple(shape), kind) for name, shape, kind in made["tensors"])
    real = architecture_of(made["config"], tuple(tensors))
    assert sum(w.elements for w in stored.tensors()) == sum(p.numel() for p in model.parameters())
    assert plain(stored) == plain(real)
    counted = count(found, meta=False).architecture
    if found.config["model_type"] in families():
        assert plain(stored) == plain(describe(found.config))
        assert [w.shape for w in counted.tensors()] == [w.shape for w in real.tensors()]
    # Ranks share the matrices out in this order.
    assert matrices(counted) == matrices(real)


def test_speech_model_is_counted_by_its_headers_with_a_note(tmp_path):
    sizes = {"num_mel_bins": 8, "max_source_positions": 20, "max_target_positions": 16}
    model = saved(tmp_path, "Whisper", BART | sizes)
    counted = count(find(str(tmp_path)))
    assert counted.how == "the headers of the weights"
    assert counted.architecture.parameters == sum(p.numel() for p in model.parameters())
    assert ([each.code for each in counted.findings], counted.trained) == (["plan.not-trained"], False)


def test_unlisted_family_with_weights_is_counted_without_torch(tmp_path):
    saved(tmp_path, *MODELS["cohere"])
    counted = count(find(str(tmp_path)), meta=False)
    assert counted.how == "the headers of the weights"
    assert counted.findings == ()
