"""The models whose memory the tests measure: T5 and Llama of about 5 and 45 million parameters."""

from __future__ import annotations

CONFIGS: dict[tuple[str, str], dict] = {
    ("t5", "5M"): {
        "model_type": "t5", "vocab_size": 4001, "d_model": 256, "d_kv": 32, "d_ff": 1000, "num_layers": 3,
        "num_heads": 8, "decoder_start_token_id": 0, "dropout_rate": 0.0,
    },
    ("llama", "5M"): {
        "model_type": "llama", "vocab_size": 4001, "hidden_size": 256, "intermediate_size": 690,
        "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 64,
    },
    ("t5", "45M"): {
        "model_type": "t5", "vocab_size": 20001, "d_model": 768, "d_kv": 64, "d_ff": 2048, "num_layers": 2,
        "num_heads": 12, "decoder_start_token_id": 0, "dropout_rate": 0.0,
    },
    ("llama", "45M"): {
        "model_type": "llama", "vocab_size": 20001, "hidden_size": 768, "intermediate_size": 2048,
        "num_hidden_layers": 3, "num_attention_heads": 12, "num_key_value_heads": 4, "max_position_embeddings": 64,
    },
}  # fmt: skip
