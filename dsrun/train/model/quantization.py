"""--quantization: LoRA on a base model whose linear layers are held in 4 or 8 bits (QLoRA, Dettmers et al. 2023).

bitsandbytes quantises the weights while transformers loads them, on GPUs and, slowly, on CPUs. Only the adapters are
trained and saved; the final merge adds them to the weights of --model as they were before.
"""

from __future__ import annotations

from typing import Any

import torch

from dsrun.errors import UsageError
from dsrun.recipe.spec import TrainSpec
from dsrun.train.loop.engine import Precision, stage_of

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
BITS = {"4bit": 4, "8bit": 8}


def quantization_config(spec: TrainSpec, precision: Precision) -> Any:
    """The settings of QLoRA's paper: NF4 with quantised scales, computed in the precision of training. The 4-bit codes
    are stored under that dtype too: ZeRO-3 shards weights of one dtype only, and DeepSpeed casts all others to it."""
    from transformers import BitsAndBytesConfig

    if spec.quantization == "8bit":
        return BitsAndBytesConfig(load_in_8bit=True)
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=DTYPES[precision],
        bnb_4bit_quant_storage=DTYPES[precision],
    )


def check_quantization(spec: TrainSpec, config: Any, deepspeed: dict[str, Any] | None) -> None:
    """Raise UsageError for a model or a DeepSpeed configuration that quantised weights do not go with; what the flags
    alone tell has been refused before (checks.toml)."""
    if spec.quantization is None:
        return
    where = f"--quantization {spec.quantization}"
    if spec.from_scratch:
        raise UsageError(
            f"{where}: {spec.model} is initialised anew, and only trained weights can be quantised",
            fix="name a trained model with --model",
        )
    if getattr(config, "quantization_config", None):
        raise UsageError(
            f"{where}: the weights of {spec.model} are quantised already, and adapters are merged into whole ones",
            fix="--model with the model that it was made from",
        )
    if stage_of(deepspeed) == 3:
        zero = (deepspeed or {})["zero_optimization"]
        if spec.quantization == "8bit":
            raise UsageError(f"{where}: ZeRO-3 cannot shard integers", fix="--quantization 4bit, or ZeRO-2")
        if zero.get("offload_param", {}).get("device", "none") != "none":
            raise UsageError(
                f"{where}: offloaded parameters would leave their scales on the GPU",
                fix="remove offload_param from the DeepSpeed configuration",
            )


def check_quantized(model: Any, spec: TrainSpec) -> str:
    """How much of the loaded model is quantised, in a sentence. Raises UsageError where experts are not, or where a
    quantised module is to be trained whole."""
    quantized = {name for name, module in model.named_modules() if _is_quantized(module)}
    for name in spec.lora_modules_to_save:
        hit = next((each for each in quantized if each == name or each.endswith(f".{name}")), None)
        if hit:
            raise UsageError(
                f"--lora-modules-to-save {name}: {hit} is quantised, and cannot be trained whole",
                fix=f"--lora-targets {name} trains adapters on it",
            )
    if any(each.ndim == 3 and each.is_floating_point() for each in model.parameters()):
        raise UsageError(
            f"--quantization {spec.quantization}: the experts of {model.config.model_type} models are no linear layers,"
            " so bitsandbytes would leave them, most of the model, as they are",
            fix="leave it out: --zero 3 shards them",
        )
    held = sum(model.get_submodule(name).weight.numel() for name in quantized)
    if spec.quantization == "4bit":
        held = sum(elements(model.get_submodule(name).weight) for name in quantized)
    total = sum(elements(each) for each in model.parameters())
    return f"{held / total:.0%} of the weights are held in {BITS[spec.quantization or '8bit']} bits"


def is_packed(parameter: Any) -> bool:
    """Whether its numbers are bitsandbytes' 4-bit codes, two to a byte, whatever dtype they are stored as."""
    return type(parameter).__name__ == "Params4bit"


def elements(parameter: Any) -> int:
    """Weights in a parameter, also in one that ZeRO-3 keeps elsewhere, or that is packed."""
    stored = getattr(parameter, "ds_numel", None) or parameter.numel()
    return stored * 2 * parameter.element_size() if is_packed(parameter) else stored


def _is_quantized(module: Any) -> bool:
    return type(module).__name__ in ("Linear4bit", "Linear8bitLt")
