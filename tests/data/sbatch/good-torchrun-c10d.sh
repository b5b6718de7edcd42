#!/bin/bash
#SBATCH --job-name=t
#SBATCH --time=10:00:00
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=h100:8
#SBATCH --cpus-per-task=96
#SBATCH --output=%x-%j.out
set -euo pipefail
source ~/envs/train/bin/activate
nodes=($(scontrol show hostnames "$SLURM_JOB_NODELIST"))
head_node=${nodes[0]}
ip=$(srun --nodes=1 --ntasks=1 -w "$head_node" hostname --ip-address)
port=$((15000 + SLURM_JOB_ID % 15000))
srun --cpus-per-task=96 torchrun \
    --nnodes "$SLURM_JOB_NUM_NODES" --nproc_per_node 8 \
    --rdzv_id "$SLURM_JOB_ID" --rdzv_backend c10d --rdzv_endpoint "$ip:$port" \
    train.py --config llama.yaml
echo finished
