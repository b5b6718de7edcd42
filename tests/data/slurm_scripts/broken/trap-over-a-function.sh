#!/bin/bash
#SBATCH --job-name=long
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --gpus=2
#SBATCH --time=2:00:00
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --output=long-%j.out

requeue() {
    pkill -TERM -P $$
    wait
    scontrol requeue "$SLURM_JOB_ID"
}
trap requeue USR1

training() {
    torchrun --standalone --nproc_per_node=2 train_long.py --resume
}

training
