#!/bin/bash
#SBATCH --job-name=vlm
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=2
#SBATCH --time=24:00:00
#SBATCH --signal=USR1@300
#SBATCH --output=vlm-%j.log

export CUDA_DEVICE_MAX_CONNECTIONS=1
export TOKENIZERS_PARALLELISM=false

free -g | head -n 2
df -h /tmp | tail -n 1

umask 027

case $(uname -m) in
x86_64) arch=x86 ;;
aarch64) arch=arm ;;
*) arch=other ;;
esac
echo "architecture: $arch"

set -euo pipefail
source ~/envs/vision/bin/activate
addr=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)

# train_vlm.py saves on SIGUSR1 and on SIGTERM.
srun torchrun --nnodes=2 --nproc_per_node=2 --rdzv_backend=c10d --rdzv_id=$SLURM_JOB_ID \
    --rdzv_endpoint=$addr:$((15000 + SLURM_JOB_ID % 15000)) train_vlm.py
