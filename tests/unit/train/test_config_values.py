"""Values of a model's config that the user sets: what they change, what follows from them, and what is refused."""

import logging

import pytest
import transformers.utils.logging as transformers_logging
from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING

from dsrun.errors import UsageError
from dsrun.recipe.recipe_spec import TrainSpec
from dsrun.train.model.config_values import with_values

ROPE = {"rope_theta": 10000.0, "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}


def stored(kind, **values):
    """A config as a checkpoint of this version has it: with all that its class computes."""
    config = CONFIG_MAPPING[kind](**values)
    return type(config).from_dict(config.to_dict())


def changed(config, *words, **more):
    return with_values(config, TrainSpec(model="m", config_override=list(words), **more))


def test_unchanged_config_is_the_same_object():
    config = stored("llama")
    assert changed(config) is config


@pytest.mark.parametrize(
    ("kind", "words", "key", "value"),
    [
        ("llama", ["attention_dropout=0.1"], "attention_dropout", 0.1),
        ("llama", ["rms_norm_eps=1"], "rms_norm_eps", 1.0),
        ("llama", ["max_position_embeddings=1e4"], "max_position_embeddings", 10_000),
        ("llama", ["tie_word_embeddings=True"], "tie_word_embeddings", True),
        ("llama", ["rope_scaling.rope_type=linear", "rope_scaling.factor=2"], "rope_parameters",
         {"rope_theta": 10000.0, "rope_type": "linear", "factor": 2}),
        ("llama", ['rope_parameters={"rope_type": "linear", "factor": 2}'], "rope_parameters",
         {"rope_theta": 10000.0, "rope_type": "linear", "factor": 2}),
        # Of the kind that it was trained with, what is not said stays, too.
        ("gpt_oss", ['rope_parameters={"rope_type": "yarn", "factor": 4.0}'], "rope_parameters",
         CONFIG_MAPPING["gpt_oss"]().rope_parameters | {"factor": 4.0}),
        ("gpt2", ["hidden_size=96"], "n_embd", 96),
        ("gemma3", ["sliding_window=64"], "sliding_window", 64),
        ("gemma3", ["text_config.sliding_window=64"], "sliding_window", 64),
        ("qwen3", ["sliding_window=16", "use_sliding_window=true", "max_window_layers=31"], "layer_types",
         ["full_attention"] * 31 + ["sliding_attention"]),
        ("smollm3", ["no_rope_layer_interval=2", "num_hidden_layers=4"], "no_rope_layers", [1, 0, 1, 0]),
        ("llama4_text", ["num_hidden_layers=2"], "moe_layers", [0, 1]),
    ],
)  # fmt: skip
def test_value_and_what_follows_from_it(kind, words, key, value):
    config = changed(stored(kind), *words)
    assert getattr(config.get_text_config(), key) == value
    assert type(config).from_dict(config.to_dict()).to_dict() == config.to_dict()


def test_comma_list_of_example_scripts():
    config = changed(stored("gpt2"), config_overrides="n_embd=12,scale_attn_weights=false,summary_type=mean")
    assert (config.n_embd, config.scale_attn_weights, config.summary_type) == (12, False, "mean")


def test_key_of_both_parts_is_set_in_both():
    config = changed(stored("gemma3"), "tie_word_embeddings=false")
    assert (config.tie_word_embeddings, config.text_config.tie_word_embeddings) == (False, False)


@pytest.mark.parametrize(
    ("kind", "words", "message"),
    [
        ("llama", ["hiden_size=4"], "did you mean hidden_size"),
        ("llama", ["rope_parameters.fector=4"], "did you mean factor"),
        ("llama", ["rope_parameters.factor=4"], "Unrecognized keys"),
        ("llama", ["rope_parameters.rope_type=yarm", "rope_parameters.factor=4"], "yarn"),
        ("llama", ["hidden_size.x=4"], "holds no keys"),
        ("llama", ["hidden_size=x"], "expected int"),
        ("llama", ["use_cache=1"], "expected bool"),
        ("gemma3", ["rope_parameters.factor=4"], "full_attention"),
        ("gemma3", ['rope_parameters={"rope_type": "linear", "factor": 8}'], "rope_parameters.full_attention"),
        ("gemma3", ["text_config.nope=1"], "text_config has no 'nope'"),
        ("llama", ["rope_theta=5e5"], "rope_parameters.rope_theta"),
        ("gpt2", ["rope_scaling.factor=4"], "has no 'rope_scaling'"),
        ("qwen3", ["sliding_window=16"], "--config-override use_sliding_window=true"),
        ("qwen3", ["layer_types=[]"], "num_hidden_layers"),
    ],
)
def test_refused_values(kind, words, message):
    with pytest.raises(UsageError) as caught:
        changed(stored(kind), *words)
    assert message in str(caught.value)
    assert words[0] in str(caught.value)


@pytest.fixture
def errors_only():
    """What is logged where only errors are, as TRANSFORMERS_VERBOSITY=error has it."""
    before, log, handler, records = (
        transformers_logging.get_verbosity(),
        logging.getLogger("transformers"),
        logging.Handler(),
        [],
    )
    handler.emit = records.append
    log.addHandler(handler)
    transformers_logging.set_verbosity_error()
    yield records
    transformers_logging.set_verbosity(before)
    log.removeHandler(handler)


@pytest.mark.parametrize("words", [["rope_parameters.factor=4"], ["rope_parameters.rope_type=yarm"]])
def test_refusals_do_not_depend_on_what_is_logged(words, errors_only):
    with pytest.raises(UsageError):
        changed(stored("llama"), *words)
    assert errors_only == []
    assert transformers_logging.get_verbosity() == transformers_logging.ERROR


def test_layers_of_a_pattern_of_its_own_are_refused():
    """A list that the class does not compute has to be given with another number of layers."""
    config = stored("qwen3", num_hidden_layers=3, layer_types=["sliding_attention"] * 3)
    with pytest.raises(UsageError, match="layer_types"):
        changed(config, "num_hidden_layers=2")
    kinds = ["sliding_attention", "full_attention"]
    given = changed(config, "num_hidden_layers=2", 'layer_types=["sliding_attention", "full_attention"]')
    assert given.layer_types == kinds
    assert changed(config, "attention_dropout=0.5").layer_types == ["sliding_attention"] * 3


def test_layers_that_the_class_cannot_compute_are_the_models_own():
    """Exaone 4's published config.json has a pattern that is no number."""
    kinds = ["sliding_attention"] * 3 + ["full_attention"]
    config = stored("exaone4", num_hidden_layers=4, layer_types=kinds, sliding_window_pattern="LLLG")
    given = changed(config, "sliding_window=16")
    assert (given.sliding_window, given.layer_types) == (16, kinds)
    with pytest.raises(UsageError, match="layer_types"):
        changed(config, "num_hidden_layers=2")


@pytest.mark.parametrize(
    ("given", "rope", "positions"),
    [
        ("yarn:4", ROPE, 8192),
        ({"type": "yarn", "factor": 4.0}, ROPE, 8192),
        ("linear:2", {"rope_theta": 10000.0, "rope_type": "linear", "factor": 2.0}, 4096),
        ("dynamic:2", {"rope_theta": 10000.0, "rope_type": "dynamic", "factor": 2.0}, 2048),
    ],
)
def test_rope_scaling(given, rope, positions):
    config = changed(stored("llama"), rope_scaling=given)
    assert (config.rope_parameters, config.max_position_embeddings) == (rope, positions)
    # Positions of one's own win.
    own = changed(stored("llama"), "max_position_embeddings=4096", rope_scaling=given)
    assert own.max_position_embeddings == 4096


def test_rope_scaling_leaves_what_is_no_scaling():
    rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [4, 6, 6]}
    config = changed(stored("qwen3_vl", text_config={"rope_parameters": rope}), rope_scaling="yarn:2")
    made = config.get_text_config().rope_parameters
    assert (made["rope_type"], made["mrope_section"]) == ("yarn", [4, 6, 6])


def test_rope_scaling_of_kinds_of_layers():
    """Of layers that see everything: a window needs no more positions."""
    config = changed(stored("gemma3"), rope_scaling="linear:8").get_text_config()
    assert config.rope_parameters["full_attention"]["factor"] == 8.0
    assert config.rope_parameters["sliding_attention"]["rope_type"] == "default"


@pytest.mark.parametrize(
    ("kind", "given", "message"),
    [("t5", "yarn:4", "rotary"), ("llama", "llama3:8", "low_freq_factor"), ("llama", "yarm:4", "yarn")],
)
def test_refused_rope_scaling(kind, given, message):
    with pytest.raises(UsageError, match=message):
        changed(stored(kind), rope_scaling=given)


def causal_families():
    return sorted({config.model_type for config in MODEL_FOR_CAUSAL_LM_MAPPING if config.model_type in CONFIG_MAPPING})


def test_fewer_layers_in_every_family():
    """Each causal family gets another number of layers with a config that can be saved, or is refused at once."""
    worked = []
    for kind in causal_families():
        try:
            config = stored(kind)
            text = config.get_text_config()
            number = type(text).attribute_map.get("num_hidden_layers", "num_hidden_layers")
            if not isinstance(getattr(text, number, None), int) or text.num_hidden_layers < 3:
                continue
        except Exception:  # some classes have no defaults that they themselves take
            continue
        try:
            made = changed(config, "num_hidden_layers=2")
        except UsageError:  # at once, which is as good
            continue
        text = made.get_text_config()
        assert text.num_hidden_layers == 2, kind
        made.validate()
        assert all(len(getattr(text, name)) == 2 for name in ("layer_types",) if getattr(text, name, None)), kind
        worked.append(kind)
    assert {"llama", "qwen3", "gemma3", "smollm3", "llama4_text", "gpt2", "gpt_oss"} <= set(worked)
    assert len(worked) > 60
