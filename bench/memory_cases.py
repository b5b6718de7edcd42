"""The runs whose memory is measured: models in the shape of T5 and Llama, on GPUs where there are any."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

Config = dict[str, Any]

T5_120M: Config = {
    "model_type": "t5", "vocab_size": 20001, "d_model": 768, "d_kv": 64, "d_ff": 2048, "num_layers": 7,
    "num_heads": 12, "decoder_start_token_id": 0, "dropout_rate": 0.0,
}  # fmt: skip
LLAMA_120M: Config = {
    "model_type": "llama", "vocab_size": 20001, "hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 13,
    "num_attention_heads": 12, "num_key_value_heads": 4, "max_position_embeddings": 4096,
}  # fmt: skip
T5_LARGE: Config = {
    "model_type": "t5", "vocab_size": 32128, "d_model": 1024, "d_kv": 64, "d_ff": 4096, "num_layers": 24,
    "num_heads": 16, "decoder_start_token_id": 0, "dropout_rate": 0.1,
}  # fmt: skip
LLAMA_1B: Config = {
    "model_type": "llama", "vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 8192,
    "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8, "tie_word_embeddings": True,
    "max_position_embeddings": 8192,
}  # fmt: skip
LLAMA_8B: Config = {
    "model_type": "llama", "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 8192,
}  # fmt: skip
LLAMA_3B: Config = {**LLAMA_1B, "hidden_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 24}
QWEN_1_5B: Config = {
    "model_type": "qwen2", "vocab_size": 151936, "hidden_size": 1536, "intermediate_size": 8960,
    "num_hidden_layers": 28, "num_attention_heads": 12, "num_key_value_heads": 2, "tie_word_embeddings": True,
    "max_position_embeddings": 131_072,
}  # fmt: skip
QWEN_7B: Config = {
    "model_type": "qwen2", "vocab_size": 152064, "hidden_size": 3584, "intermediate_size": 18944,
    "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4, "max_position_embeddings": 131_072,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Case:
    """One run: a model's config, ZeRO, and a micro batch of samples of `length` tokens (and as many source tokens)."""

    name: str
    config: Config
    stage: int
    offload: str = "none"
    precision: str = "bf16"
    checkpointing: bool = False
    micro_batch: int = 4
    length: int = 256
    lora: int | None = None

    @property
    def seq2seq(self) -> bool:
        return bool(self.config["model_type"] == "t5")

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


ON_CPU = (
    Case(name="T5 120M", config=T5_120M, stage=2, precision="fp32"),
    Case(name="T5 120M", config=T5_120M, stage=3, precision="fp32", checkpointing=True, micro_batch=8),
    Case(name="Llama 120M", config=LLAMA_120M, stage=2),
    Case(name="Llama 120M", config=LLAMA_120M, stage=2, offload="cpu"),
    Case(name="Llama 120M", config=LLAMA_120M, stage=3, checkpointing=True, micro_batch=8),
    Case(name="Llama 120M", config=LLAMA_120M, stage=3, precision="fp32"),
)


PLANNED = (
    Case(name="T5-large", config=T5_LARGE, stage=2, micro_batch=16, length=512),
    Case(name="Llama 1B", config=LLAMA_1B, stage=2, micro_batch=4, length=2048),
    Case(name="Llama 1B", config=LLAMA_1B, stage=2, micro_batch=4, length=2048, checkpointing=True),
)
"""Three that fit one GPU of 80 GiB: where activations fill it, where logits do, and where the step does."""


def on_gpu(world: int) -> tuple[Case, ...]:
    """T5-large, 1B and 8B; the last with LoRA, as all of it with its optimizer outgrows one GPU."""
    cases = []
    for name, config, micros, lora in (
        ("T5-large", T5_LARGE, (4, 16), None),
        ("Llama 1B", LLAMA_1B, (1, 4), None),
        ("Llama 8B", LLAMA_8B, (1, 2), None if world > 2 else 16),
    ):
        for checkpointing in (False, True):
            cases += [
                Case(name=name, config=config, stage=3 if world > 1 else 2, checkpointing=checkpointing,
                     micro_batch=micro, length=512 if name == "T5-large" else 2048, lora=lora)
                for micro in micros
            ]  # fmt: skip
    return tuple(cases)
