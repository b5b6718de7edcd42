#!/bin/bash
#SBATCH --job-name=santacoder
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=2
#SBATCH --time=40:00:00
#SBATCH --output=code-%j.log

export NCCL_DEBUG=WARN
export TORCH_NCCL_ASYNC_ERROR_HANDLING=1

umask 027

case $(uname -m) in
x86_64) arch=x86 ;;
aarch64) arch=arm ;;
*) arch=other ;;
esac
echo "architecture: $arch"

set -euo pipefail
source ~/envs/llm/bin/activate
HEAD=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)

torchrun --nnodes="$SLURM_NNODES" --nproc_per_node=2 \
    --rdzv_backend=c10d --rdzv_id="$SLURM_JOB_ID" \
    --rdzv_endpoint="$HEAD:$((15000 + SLURM_JOB_ID % 15000))" \
    train_code.py --languages python,java
