#!/bin/bash
#SBATCH -J flan
#SBATCH -N 2
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:2
#SBATCH -t 15:00:00
#SBATCH -o flan-%j.log

if [ -n "${DEBUG:-}" ]; then
    set -x
fi

# -----------------------------------------------------------------
# settings
# -----------------------------------------------------------------

export IP=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export PORT=$((15000 + SLURM_JOB_ID % 15000))
srun bash -c 'accelerate launch --num_processes 2 --machine_rank $SLURM_NODEID \
    --main_process_ip $IP --main_process_port $PORT train_flan.py --tasks p3'
