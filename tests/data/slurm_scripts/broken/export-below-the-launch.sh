#!/bin/bash
#SBATCH -J panns
#SBATCH -N 1
#SBATCH --ntasks-per-node=2
#SBATCH --gres=gpu:2
#SBATCH -t 7:00:00
#SBATCH -o panns-%j.log

cat <<INFO
job:    $SLURM_JOB_ID
nodes:  $SLURM_JOB_NODELIST
folder: $PWD
INFO

if [ -n "${DEBUG:-}" ]; then
    set -x
fi

export MASTER_ADDR=$(hostname)
srun bash -c 'RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=$SLURM_LOCALID \
    python train_panns.py --audioset' &
export MASTER_PORT=$((15000 + SLURM_JOB_ID % 15000))
wait $!
