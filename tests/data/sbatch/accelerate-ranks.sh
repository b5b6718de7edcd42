#!/bin/bash
#SBATCH --job-name=t
#SBATCH --time=10:00:00
#SBATCH --nodes=2
#SBATCH --gpus-per-node=4
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun accelerate launch --num_machines 2 --num_processes 4 --machine_rank $SLURM_NODEID --main_process_ip $head --main_process_port $((20000 + SLURM_JOB_ID % 10000)) train.py
