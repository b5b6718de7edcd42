#!/bin/bash
#SBATCH --job-name=layoutlm
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:2
#SBATCH --time=10:00:00
#SBATCH --output=layoutlm-%j.log

export NCCL_DEBUG=WARN
export TORCH_NCCL_ASYNC_ERROR_HANDLING=1

free -g | head -n 2
df -h /tmp | tail -n 1

echo "start: $(date)"
echo "host: $(hostname), job: $SLURM_JOB_ID"

export CUDA_DEVICE_MAX_CONNECTIONS=1
export TOKENIZERS_PARALLELISM=false

source ~/envs/docs/bin/activate
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)

srun bash -c 'torchrun --nnodes=2 --nproc_per_node=2 --node_rank=$SLURM_NODEID \
    train_layoutlm.py "$@"' - "$@"
