#!/bin/bash
#SBATCH --job-name=stylegan
#SBATCH --nodes=1
#SBATCH --ntasks=2
#SBATCH --gres=gpu:2
#SBATCH --time=20:00:00
#SBATCH --signal=USR1@200
#SBATCH --output=stylegan-%j.log

export PYTHONUNBUFFERED=1 PYTHONFAULTHANDLER=1

export CUDA_DEVICE_MAX_CONNECTIONS=1
export TOKENIZERS_PARALLELISM=false

checks=0
while [ $checks -lt 3 ] && [ ! -w "$PWD" ]; do
    sleep 1
    checks=$((checks + 1))
done

export MASTER_ADDR=$(hostname) MASTER_PORT=$((15000 + SLURM_JOB_ID % 15000))
trap 'echo resubmitting; scancel -s TERM "$SLURM_JOB_ID"; wait "$child"; scontrol requeue "$SLURM_JOB_ID"; exit 0' USR1

srun bash -c 'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=2 exec python train_stylegan.py' &
child=$!
wait "$child"
