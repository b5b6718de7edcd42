"""Write dsrun/models/other_models.json: the model types of the installed transformers that do not turn text
into text.

`--check` compares instead of writing and exits 3 when the file differs. Run it again whenever the tested version of
transformers moves.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

TARGET = Path(__file__).resolve().parent.parent / "dsrun" / "models" / "other_models.json"
EXIT_DIFFERS = 3


def other_models() -> list[str]:
    """Model types that AutoModelForCausalLM and AutoModelForSeq2SeqLM do not know, or only as a part of a model that
    hears or makes sound, or know by a class that is saved under a config of which they know no class (Mllama)."""
    from transformers import CONFIG_MAPPING
    from transformers.models.auto import modeling_auto as auto

    causal = set(auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    seq2seq = set(auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES)
    found = []
    for name in CONFIG_MAPPING:
        try:
            config = CONFIG_MAPPING[name]
        except (ImportError, AttributeError, ValueError):
            continue
        writes = name in seq2seq if getattr(config, "is_encoder_decoder", False) else name in causal
        writes = writes and _loads_what_it_saves(config)
        if not writes and not _is_encoder_decoder_in_its_config(name):
            found.append(name)
    return sorted(found)


def _loads_what_it_saves(config: type) -> bool:
    from transformers.models.auto import modeling_auto as auto

    for mapping in (auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING, auto.MODEL_FOR_CAUSAL_LM_MAPPING):
        if config in mapping:
            saved = mapping[config].config_class
            return saved is None or saved in mapping
    return True


def _is_encoder_decoder_in_its_config(name: str) -> bool:
    """encoder-decoder and others say so only once they are made of two models."""
    return name == "encoder-decoder"


def main(argv: list[str]) -> int:
    from importlib.metadata import version

    text = json.dumps({"transformers": version("transformers"), "model_types": other_models()}, indent=1) + "\n"
    if "--check" not in argv:
        TARGET.write_text(text, encoding="utf-8")
        return 0
    return 0 if TARGET.read_text(encoding="utf-8") == text else EXIT_DIFFERS


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
