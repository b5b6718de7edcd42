"""Fewer bits: --quantization for the weights under LoRA, --fp8 for the products of matrices.

--quantization is LoRA on a base model whose linear layers are held in 4 or 8 bits (QLoRA, Dettmers et al. 2023).

bitsandbytes quantises the weights while transformers loads them, on GPUs and, slowly, on CPUs. Only the adapters are
trained and saved; the final merge adds them to the weights of --model as they were before.

--fp8 has torchao round both factors of each product of a linear layer to 8 bits, scaled by their largest value
(Micikevicius et al. 2022). The weights, their names and the optimizer are those of a run in bf16."""

from typing import Any

import torch

from dsrun.errors import UsageError
from dsrun.recipe.precision import TrainingPrecision
from dsrun.recipe.recipe_spec import TrainSpec
from dsrun.train.base.refusals import refusal, refuse
from dsrun.zero.ops import stage_of

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def quantization_config(spec: TrainSpec, precision: TrainingPrecision) -> Any:
    """The settings of QLoRA's paper: NF4 with quantised scales, computed in the precision of training. The 4-bit codes
    are stored under that dtype too: ZeRO-3 shards weights of one dtype only, and DeepSpeed casts all others to it."""
    from transformers import BitsAndBytesConfig

    if spec.quantization == "8bit":
        return BitsAndBytesConfig(load_in_8bit=True)
    dtypes = dict.fromkeys(("bnb_4bit_compute_dtype", "bnb_4bit_quant_storage"), DTYPES[precision])
    return BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, **dtypes)


def check_quantization(spec: TrainSpec, config: Any, deepspeed: dict[str, Any] | None) -> None:
    """Raise UsageError for a model or a DeepSpeed configuration that quantised weights do not go with; what the flags
    alone tell has been refused before (checks.toml)."""
    if spec.quantization is None:
        return
    known = getattr(config, "quantization_config", None)
    zero = (deepspeed or {}).get("zero_optimization", {})
    refuse("quantization", spec=spec, known=known, zero=zero, stage=stage_of(deepspeed))


def check_quantized(model: Any, spec: TrainSpec) -> str:
    """How much of the loaded model is quantised, in a sentence. Raises UsageError where experts are not, or where a
    quantised module is to be trained whole."""
    kinds = ("Linear4bit", "Linear8bitLt")
    quantized = {name for name, module in model.named_modules() if type(module).__name__ in kinds}
    for name in spec.lora_modules_to_save:
        hit = next((each for each in quantized if each == name or each.endswith(f".{name}")), None)
        if hit:
            raise refusal("quantized.trained_whole", name=name, hit=hit)
    if any(each.ndim == 3 and each.is_floating_point() for each in model.parameters()):
        raise refusal("quantized.experts", spec=spec, kind=model.config.model_type)
    held = sum(elements(model.get_submodule(name).weight) for name in quantized)
    total = sum(elements(each) for each in model.parameters())
    return f"{held / total:.0%} of the weights are held in {str(spec.quantization).removesuffix('bit')} bits"


def keep_codes(model: Any) -> None:
    """Leave the 4-bit codes as they were loaded, on every processor: on one with AVX512-BF16, bitsandbytes' layers
    (nn/modules.py, `Linear4bit.forward`) rearrange them for inference at the first batch that is not trained on. That
    rounds the scales to bf16, and fails where a layer has fewer inputs than a block."""
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False


def check_fp8(spec: TrainSpec, precision: TrainingPrecision, deepspeed: dict[str, Any] | None, device: str) -> None:
    """Raise UsageError where --fp8 was asked for, and this GPU or the rest of the run cannot do it."""
    if not spec.fp8:
        return
    capability = torch.cuda.get_device_capability() if device == "cuda" else None
    refuse("fp8", capability=capability, precision=precision, stage=stage_of(deepspeed))


def convert_to_fp8(model: Any, *, emulate: bool = False) -> str:
    """Have the linear layers multiply in FP8, but for the first and the last, which learn badly in it, and those whose
    sizes are no multiples of 16; returns how many do, in a sentence. `emulate` computes the same on any device."""
    from accelerate.utils import convert_model_to_fp8_ao
    from torchao.float8 import Float8LinearConfig
    from torchao.float8.float8_linear import Float8Linear

    # The tokens of a batch are the inner size of a gradient's product, and no multiple of 16.
    convert_model_to_fp8_ao(model, config=Float8LinearConfig(pad_inner_dim=True, emulate=emulate))
    linear = [module for module in model.modules() if isinstance(module, torch.nn.Linear)]
    converted = sum(isinstance(module, Float8Linear) for module in linear)
    if not converted:
        raise UsageError("--fp8: no linear layer of this model has sizes that are multiples of 16", fix="leave it out")
    return f"{converted} of {len(linear)} linear layers multiply in FP8"


def is_packed(parameter: Any) -> bool:
    """Whether its numbers are bitsandbytes' 4-bit codes, two to a byte, whatever dtype they are stored as."""
    return type(parameter).__name__ == "Params4bit"


def elements(parameter: Any) -> int:
    """Weights in a parameter, also in one that ZeRO-3 keeps elsewhere, or that is packed."""
    stored = getattr(parameter, "ds_numel", None) or parameter.numel()
    return stored * 2 * parameter.element_size() if is_packed(parameter) else stored
