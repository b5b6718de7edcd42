#!/bin/bash
#SBATCH -J sft-7b
#SBATCH -p a100
#SBATCH -N 2
#SBATCH --ntasks-per-node 1
#SBATCH --gres gpu:4
#SBATCH -c 32
#SBATCH -t 12:00:00
#SBATCH -o sft_%j.out
#SBATCH -e sft_%j.err

# Every task has its own SLURM_NODEID: the quotes keep this shell from reading it.
head=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n1)
export HEAD_IP=$(getent hosts "$head" | awk '{print $1; exit}')
export PORT=$((20000 + SLURM_JOB_ID % 10000))

echo "head node: $head ($HEAD_IP)"
nvidia-smi -L

srun --label -c 32 bash -c 'torchrun \
    --nnodes=$SLURM_NNODES \
    --node_rank=$SLURM_NODEID \
    --nproc_per_node=4 \
    --master_addr=$HEAD_IP \
    --master_port=$PORT \
    finetune.py --model mistral-7b --data sft.jsonl --bf16'
