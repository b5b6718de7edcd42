"""TrainSpec: everything dsrun itself asks about a training run.

The command line, the keys of run.yaml, their validation, `--help` and docs/train.md are derived from these fields and
from what recipe_spec.toml says of each; the flags of Seq2SeqTrainingArguments are data in hf_flags.json
(see `dsrun.recipe.flags`)."""

from dataclasses import dataclass, field
from typing import Any

from dsrun.engine_options import EngineOptions
from dsrun.options import described

DEFAULT_TARGET = 128
"""Tokens of a target where --max-target-length is not given."""


@described(__file__)
@dataclass(frozen=True, kw_only=True)
class TrainSpec(EngineOptions):
    """What a training run needs, apart from the Transformers training arguments.

    `example_scripts` marks a flag that exists so that command lines of the Transformers example scripts run unchanged.
    `mix` is what `dsrun.recipe.mixture` describes."""

    # model
    model: str | None = None
    hub: str = "huggingface"
    task: str = "auto"
    from_scratch: bool = False
    allow_missing_weights: bool = False
    text_only: bool = False
    config_override: list[str] = field(default_factory=list)
    rope_scaling: dict[str, Any] | None = None
    weights_dtype: str = "float32"
    attn_implementation: str | None = None
    resize_position_embeddings: bool | None = None
    config_name: str | None = None
    config_overrides: str | None = None
    model_type: str | None = None
    tokenizer: str | None = None
    use_fast_tokenizer: bool = True
    model_revision: str = "main"
    token: str | None = None
    trust_remote_code: bool = False
    cache_dir: str | None = None

    # zero
    zero: str | None = None
    offload: str = "none"
    speed: str = "auto"

    # batch
    global_batch_size: int | None = None
    global_batch_tokens: int | None = None
    micro_batch_size: int | None = None
    packing: str = "auto"

    # data
    dataset: str | None = None
    dataset_config: str | None = None
    train_file: list[str] = field(default_factory=list)
    validation_file: list[str] = field(default_factory=list)
    test_file: list[str] = field(default_factory=list)
    mix: dict[str, Any] | None = None
    source_lang: str | None = None
    target_lang: str | None = None
    lang: str | None = None
    source_prefix: str | None = None
    chat_template: str | None = None
    apply_chat_template: bool = False
    text_column: str | None = None
    summary_column: str | None = None
    ignore_columns: list[str] = field(default_factory=list)
    max_length: int | None = None
    max_source_length: int | None = None
    max_target_length: int | None = None
    val_max_target_length: int | None = None
    block_size: int | None = None
    pad_to_max_length: bool = False
    max_train_samples: int | None = None
    max_eval_samples: int | None = None
    max_predict_samples: int | None = None
    bin_dtype: str | None = None
    max_bad_rows: float = 0.01
    streaming: bool = False
    num_proc: int | None = None
    overwrite_cache: bool = False
    validation_split_percentage: int = 5
    keep_linebreaks: bool = True
    ignore_pad_token_for_loss: bool = True
    forced_bos_token: str | None = None
    num_beams: int | None = None
    sample_prompts: str | None = None

    # memory
    activation_offload: bool = False

    # long context
    long_context: int | None = None
    sequence_parallel: int | None = None

    # lora
    lora: int | None = None
    lora_alpha: int | None = None
    lora_dropout: float = 0.0
    lora_targets: list[str] = field(default_factory=list)
    lora_target_parameters: list[str] = field(default_factory=list)
    lora_modules_to_save: list[str] = field(default_factory=list)
    rslora: bool = False
    dora: bool = False
    freeze: list[str] = field(default_factory=list)
    quantization: str | None = None
    fp8: bool = False

    # dpo
    dpo_beta: float = 0.1
    dpo_loss: str = "sigmoid"
    dpo_label_smoothing: float = 0.0
    dpo_divergence: str = "reverse_kl"
    sft_weight: float = 0.0
    sync_ref_model: bool = False
    ref_model_mixup_alpha: float = 0.6
    ref_model_sync_steps: int = 512

    # distillation
    teacher: str | None = None
    distill_loss: str = "forward"
    distill_beta: float = 0.5
    distill_temperature: float = 1.0
    distill_alpha: float = 0.0

    # learning rates
    layer_lr_decay: float | None = None
    lr_for: list[str] = field(default_factory=list)
    loraplus_lr_ratio: float | None = None

    # checkpoints, restarts, and what happens when something goes wrong
    save_every: str | None = None
    auto_micro_batch: bool = False
    keep: int = 3
    async_save: bool = False
    trust: bool = False
    max_restarts: int = 3
    hang_timeout: float | None = None
    elastic: str | None = None
    remedy: bool = True
    on_nan: str = "stop"
    warm: bool = True
    sample_ledger: bool = False

    # run
    output: str | None = None
    resume: str = "auto"
    config: str | None = None
    explain: bool = False
    all: bool = False
    dry_run: bool = False
    nproc: int | None = None
    master_port: int | None = None
    find_port: bool = False
    early_stopping: int | None = None
    plugin: str | None = None
    show: int = 2
    profile: int | None = None
    wandb_project: str | None = None
    tensorboard_dir: str | None = None
    notify: list[str] = field(default_factory=list)
    log_format: str = "text"
    force: bool = False
    debug: bool = False
