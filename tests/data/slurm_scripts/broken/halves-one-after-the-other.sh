#!/bin/bash
#SBATCH --job-name=two-halves
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:2
#SBATCH --time=4:00:00
#SBATCH --output=%x-%j.log

hosts=( $(scontrol show hostnames "$SLURM_JOB_NODELIST") )
head=${hosts[0]}
port=$((16000 + SLURM_JOB_ID % 12000))

srun -N1 -n1 -w "${hosts[0]}" torchrun --nnodes=2 --node_rank=0 --nproc_per_node=2 \
    --master_addr="$head" --master_port="$port" train_gpt.py
srun -N1 -n1 -w "${hosts[1]}" torchrun --nnodes=2 --node_rank=1 --nproc_per_node=2 \
    --master_addr="$head" --master_port="$port" train_gpt.py
