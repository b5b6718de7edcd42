"""The options about activations, checkpoints and observation."""

from __future__ import annotations

from dataclasses import dataclass

from dsrun.zero.generate.options import option

ACTIVATION = "activation_checkpointing"


@dataclass(frozen=True, kw_only=True)
class RunningOptions:
    """What happens beside the step itself."""

    activation_checkpointing: bool | None = option(
        None,
        "write the block that steers deepspeed.checkpointing; models of Transformers do not use it, their switch "
        "is the training argument --gradient_checkpointing",
        group="activations",
    )
    partition_activations: bool = option(
        False,
        "shard checkpointed activations over the model-parallel GPUs",
        group="activations",
        sets=f"{ACTIVATION}.partition_activations",
        needs="activation_checkpointing",
    )
    cpu_checkpointing: bool = option(
        False,
        "keep checkpointed activations in host memory",
        group="activations",
        sets=f"{ACTIVATION}.cpu_checkpointing",
        needs="activation_checkpointing",
    )
    contiguous_checkpointing: bool = option(
        False,
        "one buffer for all checkpointed activations, against fragmentation",
        group="activations",
        sets=f"{ACTIVATION}.contiguous_memory_optimization",
        needs="partition_activations",
    )
    number_checkpoints: int | None = option(
        None,
        "checkpointed layers, which sizes that buffer",
        group="activations",
        sets=f"{ACTIVATION}.number_checkpoints",
        needs="activation_checkpointing",
        least=1,
    )
    synchronize_checkpoints: bool = option(
        False,
        "wait for the GPU at each checkpointed layer",
        group="activations",
        sets=f"{ACTIVATION}.synchronize_checkpoint_boundary",
        needs="activation_checkpointing",
    )
    profile_checkpoints: bool = option(
        False,
        "time each checkpointed layer",
        group="activations",
        sets=f"{ACTIVATION}.profile",
        needs="activation_checkpointing",
    )

    # checkpoint
    load_universal: bool = option(
        False,
        "load a universal checkpoint: made by ds_to_universal, for another number of GPUs",
        group="checkpoint",
        sets="checkpoint.load_universal",
    )
    tag_validation: str | None = option(
        None,
        "what to do when the ranks save under different tags",
        group="checkpoint",
        sets="checkpoint.tag_validation",
        choices=("Ignore", "Warn", "Fail"),
    )
    node_local_storage: bool = option(
        False,
        "each node saves to a disk of its own",
        group="checkpoint",
        sets="checkpoint.use_node_local_storage",
    )
    parallel_write: bool = option(
        False,
        "pipeline stages write their files in parallel",
        group="checkpoint",
        sets="checkpoint.parallel_write.pipeline_stage",
    )
    checkpoint_writer: str | None = option(
        None,
        "who writes checkpoints: python (torch.save) or fast (NVMe at full speed)",
        group="checkpoint",
        sets="checkpoint.writer.type",
        choices=("python", "fast"),
    )
    checkpoint_decoupled: bool = option(
        False,
        "write checkpoints while training goes on",
        group="checkpoint",
        sets="checkpoint.writer.decoupled",
        needs="checkpoint_writer",
    )

    # monitor
    tensorboard: str | None = option(
        None,
        "write TensorBoard events into this folder",
        group="monitor",
        sets="tensorboard.output_path",
        along={"tensorboard.enabled": True},
        metavar="DIR",
    )
    csv: str | None = option(
        None,
        "write CSV files into this folder",
        group="monitor",
        sets="csv_monitor.output_path",
        along={"csv_monitor.enabled": True},
        metavar="DIR",
    )
    job_name: str | None = option(
        None, "name of the run in TensorBoard's and the CSV folder", group="monitor", metavar="NAME"
    )
    wandb: str | None = option(
        None,
        "Weights & Biases project",
        group="monitor",
        sets="wandb.project",
        along={"wandb.enabled": True},
        metavar="PROJECT",
    )
    wandb_group: str | None = option(
        None, "Weights & Biases group", group="monitor", sets="wandb.group", needs="wandb", metavar="NAME"
    )
    wandb_team: str | None = option(
        None, "Weights & Biases team", group="monitor", sets="wandb.team", needs="wandb", metavar="NAME"
    )
    comet: str | None = option(
        None,
        "Comet project; the API key comes from COMET_API_KEY",
        group="monitor",
        sets="comet.project",
        along={"comet.enabled": True},
        metavar="PROJECT",
    )
    comet_workspace: str | None = option(
        None, "Comet workspace", group="monitor", sets="comet.workspace", needs="comet", metavar="NAME"
    )
    comet_experiment: str | None = option(
        None,
        "name of the experiment",
        group="monitor",
        sets="comet.experiment_name",
        needs="comet",
        metavar="NAME",
    )
    flops_profiler: bool = option(
        False,
        "measure the model's FLOPs and time, module by module",
        group="monitor",
        sets="flops_profiler.enabled",
    )
    flops_step: int | None = option(
        None,
        "optimizer step that is measured",
        group="monitor",
        sets="flops_profiler.profile_step",
        needs="flops_profiler",
        least=1,
    )
    flops_depth: int | None = option(
        None,
        "depth of modules to list; -1: all",
        group="monitor",
        sets="flops_profiler.module_depth",
        needs="flops_profiler",
        least=-1,
    )
    flops_top: int | None = option(
        None,
        "modules to list at each depth",
        group="monitor",
        sets="flops_profiler.top_modules",
        needs="flops_profiler",
        least=1,
    )
    flops_brief: bool = option(False, "leave out the module tree", group="monitor", needs="flops_profiler")
    flops_recompute: float | None = option(
        None,
        "share of the forward pass that activation checkpointing repeats",
        group="monitor",
        sets="flops_profiler.recompute_fwd_factor",
        needs="flops_profiler",
        least=0,
        most=1,
    )
    flops_file: str | None = option(
        None,
        "file for the profile; default: stdout",
        group="monitor",
        sets="flops_profiler.output_file",
        needs="flops_profiler",
        metavar="FILE",
    )
    comms_logger: bool = option(
        False, "log every collective's size and time", group="monitor", sets="comms_logger.enabled"
    )
    comms_ops: tuple[str, ...] = option(
        (),
        "collectives to log; default: all",
        group="monitor",
        sets="comms_logger.prof_ops",
        along={"comms_logger.prof_all": False},
        needs="comms_logger",
        metavar="NAME",
    )
    comms_verbose: bool = option(
        False,
        "a line for each collective as it happens",
        group="monitor",
        sets="comms_logger.verbose",
        needs="comms_logger",
    )
    comms_debug: bool = option(
        False,
        "name the caller of each collective",
        group="monitor",
        sets="comms_logger.debug",
        needs="comms_logger",
    )
    steps_per_print: int | None = option(
        None,
        "optimizer steps between two lines of DeepSpeed's log",
        group="monitor",
        sets="steps_per_print",
        least=1,
    )
    wall_clock_breakdown: bool = option(
        False, "time forward, backward and step", group="monitor", sets="wall_clock_breakdown"
    )
    memory_breakdown: bool = option(
        False, "log memory at the engine's milestones", group="monitor", sets="memory_breakdown"
    )
    throughput_timer: bool | None = option(
        None, "count samples per second", group="monitor", sets="timers.throughput.enabled"
    )
    throughput_synchronized: bool | None = option(
        None,
        "wait for the GPU when counting: exact, and slower",
        group="monitor",
        sets="timers.throughput.synchronized",
    )
    dump_state: bool = option(
        False, "print the engine's state at the start", group="monitor", sets="dump_state"
    )
    log_level: str | None = option(
        None,
        "level of DeepSpeed's log",
        group="monitor",
        sets="log_level",
        choices=("debug", "info", "warning", "error", "critical"),
    )
    disable_python_gc: bool = option(
        False,
        "collect Python's garbage at steps only, the same on all ranks",
        group="monitor",
        sets="disable_python_gc",
    )
