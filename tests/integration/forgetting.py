"""For tests that build one engine after another in a process, as if each were a process of its own."""

from __future__ import annotations

import gc
import os

from accelerate.state import AcceleratorState, GradientState, PartialState
from transformers.integrations.deepspeed import unset_hf_deepspeed_config


def forget() -> None:
    """Reset what a fresh process would not know of the engine or the Trainer before it."""
    gc.collect()
    unset_hf_deepspeed_config()
    for name in [name for name in os.environ if name.startswith("ACCELERATE_")]:
        del os.environ[name]
    for state in (AcceleratorState, GradientState):
        state._reset_state()
    PartialState._shared_state.clear()
