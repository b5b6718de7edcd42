#!/bin/bash
#SBATCH --job-name=timing
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:1
#SBATCH --time=06:00:00
#SBATCH --signal=B:USR2@120
#SBATCH --output=timing-%j.log

handler() {
    scancel --signal=TERM $SLURM_JOB_ID
    wait
    exit 0
}
trap handler SIGUSR2

host=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)
flags="--nnodes=2 --nproc_per_node=1 --rdzv_backend=c10d --rdzv_id=$SLURM_JOB_ID"

time srun torchrun $flags --rdzv_endpoint=$host:$((19000 + SLURM_JOB_ID % 9000)) train_timing.py
