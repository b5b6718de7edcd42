"""Where dsrun's defaults differ from those of Seq2SeqTrainingArguments."""

from __future__ import annotations

from typing import Any

ZERO_STAGE = 2

# Known before anything is looked at.
FIXED: dict[str, Any] = {
    "logging_first_step": True,
    # The stock filter logs the average of earlier losses in place of NaN: a dead run looks healthy.
    "logging_nan_inf_filter": False,
    "log_level": "info",
    "ddp_find_unused_parameters": False,
    "report_to": ["none"],
}

# Chosen when the run starts, from what they say.
CHOSEN: dict[str, str] = {
    "zero": f"{ZERO_STAGE}, unless --deepspeed is given",
    "output": "runs/<model>-<time>",
    "save_every": "as --save_strategy and --save_steps say",
    "micro_batch_size": "the largest up to 8 that divides the global batch",
    "logging_steps": "10, or a tenth of a short run",
    "bf16": "where the hardware computes in it",
    "tf32": "where the hardware has it",
    "predict_with_generate": "for seq2seq",
    "per_device_eval_batch_size": "the micro batch, at least 8",
    "dataloader_num_workers": "from the cores per rank; 0 on CPU",
    "dataloader_persistent_workers": "where there are workers",
    "do_eval": "where there is validation data",
    "use_liger_kernel": "on GPUs, when installed",
    "run_name": "the run folder's name",
    "use_cpu": "where there is no GPU",
    "lora_alpha": "2 × rank",
    "lora_targets": "all-linear, every linear layer",
    "num_proc": "the cores, at most 16",
    "hang_timeout": "3 × the slowest step, at least 10",
    "nproc": "one per visible GPU, 1 on CPU",
    "master_port": "a free one",
    "tensorboard_dir": "in the run folder",
}
