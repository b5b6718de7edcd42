"""What a tokenizer is, as a digest: two that tokenise alike have the same, and any change makes another."""

from __future__ import annotations

import hashlib
import json
import tempfile
from pathlib import Path
from typing import Any


def tokenizer_identity(tokenizer: Any) -> str:
    """A digest of everything that bears on the ids: vocabulary and rules, special tokens, template,
    languages.
    """
    digest = hashlib.sha256()
    own = {
        "class": type(tokenizer).__name__,
        "special": {name: str(token) for name, token in tokenizer.special_tokens_map.items()},
        "template": getattr(tokenizer, "chat_template", None),
        "languages": [getattr(tokenizer, name, None) for name in ("src_lang", "tgt_lang")],
        "limit": tokenizer.model_max_length,
    }
    digest.update(json.dumps(own, sort_keys=True, default=str).encode())
    if tokenizer.is_fast:
        rules = json.loads(tokenizer.backend_tokenizer.to_str())
        # These two are left over from the last call and set anew by every next one.
        rules.pop("truncation", None)
        rules.pop("padding", None)
        digest.update(json.dumps(rules, sort_keys=True).encode())
    else:
        # What a slow tokenizer consists of only its files tell (Marian has two SentencePiece models).
        with tempfile.TemporaryDirectory() as folder:
            for name in sorted(tokenizer.save_vocabulary(folder)):
                digest.update(Path(name).read_bytes())
        digest.update(json.dumps(tokenizer.get_added_vocab(), sort_keys=True).encode())
    return digest.hexdigest()


def library_versions() -> dict[str, str]:
    """The versions of what tokenises: an upgrade tokenises once more."""
    import tokenizers
    import transformers

    return {"tokenizers": tokenizers.__version__, "transformers": transformers.__version__}
