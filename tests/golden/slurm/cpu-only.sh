#!/bin/bash
#SBATCH --job-name=demo-t5
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=4
#SBATCH --signal=B:USR1@180
#SBATCH --requeue
#SBATCH --open-mode=append
# Rendered by dsrun VERSION
# `dsrun render-slurm --show-template` prints the template; signals, waiting and requeueing are functions of job.bash.
# shellcheck disable=SC1090,SC1091,SC2034,SC2154
set -u -o pipefail
source /opt/dsrun/share/job.bash || exit 4
export DSRUN_GPUS=0
export DS_ACCELERATOR=cpu
export CUDA_VISIBLE_DEVICES=''
[ -v TOKENIZERS_PARALLELISM ] || export TOKENIZERS_PARALLELISM=false
export PATH=/opt/dsrun/bin:"$PATH"
# With these set Accelerate silently drops DeepSpeed.
unset ACCELERATE_USE_CPU ACCELERATE_USE_DEEPSPEED ACCELERATE_MIXED_PRECISION ACCELERATE_USE_FSDP

nproc=4 cpu_only=yes trains=yes supervised=yes
requeue=yes max_requeues=3 saving_time=150
start_job --per-job "$PWD"/runs/demo-t5

# One supervisor per node restarts the workers after transient failures; it exits with 75 if a signal stopped the run.
srun --export=ALL --wait=60 "${cpus[@]}" \
    bash -c "$on_node" dsrun-node \
    /opt/dsrun/bin/python -m dsrun launch -- \
    python -m torch.distributed.run \
    --nnodes="$SLURM_JOB_NUM_NODES" --nproc-per-node=4 \
    --rdzv-backend=c10d --rdzv-endpoint="$endpoint" --rdzv-id="$job-$restart" \
    --module -- dsrun.train --model demo-t5 --zero 2 &
finish "$!"
