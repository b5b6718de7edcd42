#!/bin/bash
#SBATCH --job-name=reward
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=2
#SBATCH --time=05:00:00
#SBATCH --output=reward-%j.log

export PYTHONUNBUFFERED=1 PYTHONFAULTHANDLER=1

main_ip() { scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1; }

accelerate_flags() {
    printf ' --num_machines %s --num_processes %s' "$SLURM_NNODES" 4
    printf ' --main_process_ip %s --main_process_port %s' "$(main_ip)" "$((17000 + SLURM_JOB_ID % 7000))"
}

export FLAGS="$(accelerate_flags)"

srun accelerate launch $FLAGS --machine_rank "$SLURM_PROCID" \
    train_reward.py --base pythia-1b
