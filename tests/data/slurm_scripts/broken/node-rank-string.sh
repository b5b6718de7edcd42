#!/bin/bash
#SBATCH -J gpt-neo
#SBATCH -N 2
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:4
#SBATCH -t 20:00:00
#SBATCH -o neo_%j.out

test -d figures || mkdir figures

for v in SLURM_JOB_ID SLURM_JOB_NODELIST SLURM_JOB_NAME; do
    printf '%s=%s\n' "$v" "${!v}"
done

GPUS_PER_NODE=4
MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)
MASTER_PORT=$((15000 + SLURM_JOB_ID % 10000))
NNODES=$SLURM_NNODES
NODE_RANK=$SLURM_NODEID

DISTRIBUTED_ARGS="--nproc_per_node $GPUS_PER_NODE --nnodes $NNODES --node_rank $NODE_RANK --master_addr $MASTER_ADDR --master_port $MASTER_PORT"

srun bash -c "torchrun $DISTRIBUTED_ARGS pretrain_neo.py --num-layers 12 --seq-length 2048"
