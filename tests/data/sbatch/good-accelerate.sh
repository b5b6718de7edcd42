#!/bin/bash
#SBATCH --job-name=t
#SBATCH --time=10:00:00
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:8
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_PORT=$((15000 + SLURM_JOB_ID % 15000))
LAUNCHER="accelerate launch --num_machines $SLURM_NNODES --num_processes 16 --main_process_ip $MASTER_ADDR --main_process_port $MASTER_PORT --machine_rank \$SLURM_PROCID"
set -o pipefail
srun --jobid $SLURM_JOB_ID bash -c "$LAUNCHER train.py --epochs 3" 2>&1 | tee log.txt
