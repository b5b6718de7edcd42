#!/bin/bash
#SBATCH --job-name=diffusion
#SBATCH --partition=gpu
#SBATCH --nodes=1
#SBATCH --ntasks=4
#SBATCH --gres=gpu:4
#SBATCH --time=12:00:00
#SBATCH --signal=USR1@180
#SBATCH --output=diffusion-%j.txt

checks=0
while [ $checks -lt 3 ] && [ ! -w "$PWD" ]; do
    sleep 1
    checks=$((checks + 1))
done

cd "$SLURM_SUBMIT_DIR" || exit 1

export MASTER_ADDR=127.0.0.1 MASTER_PORT=$((23456 + SLURM_JOB_ID % 4000))

# The ranks have a handler for USR1 and save on it. exec: no shell is left in between.
srun --kill-on-bad-exit=1 bash -c '
    export RANK=$SLURM_PROCID
    export LOCAL_RANK=$SLURM_LOCALID
    export WORLD_SIZE=$SLURM_NTASKS
    exec python train_diffusion.py --resolution 512 --ema'
