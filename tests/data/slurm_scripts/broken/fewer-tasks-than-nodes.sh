#!/bin/bash
#SBATCH --job-name=lonely
#SBATCH --nodes=2
#SBATCH --ntasks=1
#SBATCH --gpus-per-node=2
#SBATCH --time=9:00:00
#SBATCH --output=lonely-%j.log

# The logs of old runs are kept for a month, see the wiki of the group.
# Questions: the channel of the cluster.

START=$(date +%s)
REVISION=$(git rev-parse --short HEAD 2>/dev/null || echo unknown)
echo "revision $REVISION, started at $START"

export CUDA_DEVICE_MAX_CONNECTIONS=1
export TOKENIZERS_PARALLELISM=false

case $(uname -m) in
x86_64) arch=x86 ;;
aarch64) arch=arm ;;
*) arch=other ;;
esac
echo "architecture: $arch"

M=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun torchrun --nnodes=2 --nproc_per_node=2 --rdzv_backend=c10d --rdzv_id=$SLURM_JOB_ID \
    --rdzv_endpoint=$M:$((15000 + SLURM_JOB_ID % 15000)) train_lonely.py
