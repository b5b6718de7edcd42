#!/bin/bash
#SBATCH --job-name=t5-large
#SBATCH --nodes=8
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=48
#SBATCH --chdir="/home/ada/my project"
#SBATCH --signal=B:USR1@144
#SBATCH --requeue
#SBATCH --open-mode=append
# Rendered by dsrun VERSION for ada: dsrun render-slurm --nodes 4
# `dsrun render-slurm --show-template` prints the template; signals, waiting and requeueing are functions of job.bash.
# shellcheck disable=SC1090,SC1091,SC2034,SC2154
set -u -o pipefail
source /opt/dsrun/share/job.bash || exit 4
export DSRUN_GPUS=4
[ -v TOKENIZERS_PARALLELISM ] || export TOKENIZERS_PARALLELISM=false
[ -v PYTORCH_CUDA_ALLOC_CONF ] || export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
# With these set Accelerate silently drops DeepSpeed.
unset ACCELERATE_USE_CPU ACCELERATE_USE_DEEPSPEED ACCELERATE_MIXED_PRECISION ACCELERATE_USE_FSDP

nproc=4 cpu_only='' trains=yes supervised=yes
requeue=yes max_requeues=3 saving_time=114
start_job "$PWD"/runs/ro
stage_environment tar /shared/env.tar.gz env.tar.gz '/local disk' ''

# One supervisor per node restarts the workers after transient failures; it exits with 75 if a signal stopped the run.
srun --export=ALL --wait=60 "${cpus[@]}" \
    bash -c "$on_node" dsrun-node \
    "$DSRUN_LOCAL/env/bin/python" -m dsrun launch -- \
    python -m torch.distributed.run \
    --nnodes="$SLURM_JOB_NUM_NODES" --nproc-per-node=4 \
    --rdzv-backend=c10d --rdzv-endpoint="$endpoint" --rdzv-id="$job-$restart" \
    --module -- dsrun.train --model t5-large --dataset wmt16 --dataset-config ro-en --output runs/ro &
finish "$!"
