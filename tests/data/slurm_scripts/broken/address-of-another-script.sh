#!/bin/bash
#SBATCH -J scibert
#SBATCH -N 2
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:2
#SBATCH -t 20:00:00
#SBATCH -o sci-%j.log

trap 'echo "exit code $?"' EXIT

if [ -n "${DEBUG:-}" ]; then
    set -x
fi

nodes_array=($(scontrol show hostnames "$SLURM_JOB_NODELIST"))
head_node=${nodes_array[0]}
echo "head: $head_node"

srun torchrun --nnodes=2 --nproc_per_node=2 --rdzv_id=$SLURM_JOB_ID --rdzv_backend=c10d \
    --rdzv_endpoint=$head_node_ip:$((15000 + SLURM_JOB_ID % 15000)) \
    train_scibert.py
