from transformers import LlamaConfig

from dsrun.train.facts import model_identity


def config(**values):
    return LlamaConfig(hidden_size=32, num_attention_heads=4, num_hidden_layers=2, **values)


def test_where_a_model_lies_and_how_it_computes_is_no_difference():
    plain = model_identity(config())
    other = config(use_cache=False, dtype="bfloat16", architectures=["LlamaForCausalLM"])
    other._name_or_path = "/somewhere/else"
    other._attn_implementation = "eager"
    assert model_identity(other) == plain


def test_what_a_model_is_makes_a_difference():
    assert model_identity(config(attention_dropout=0.1)) != model_identity(config())
    assert model_identity(
        config(rope_parameters={"rope_theta": 5e5, "rope_type": "default"})
    ) != model_identity(config())
