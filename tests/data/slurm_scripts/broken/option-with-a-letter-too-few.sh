#!/bin/bash
#SBATCH -J kd
#SBATCH -N 1
#SBATCH --ntask-per-node=2
#SBATCH --gres=gpu:2
#SBATCH -t 11:00:00
#SBATCH -o kd-%j.log

export HF_HOME=$HOME/cache/huggingface
export HF_DATASETS_OFFLINE=1
export TRANSFORMERS_OFFLINE=1

# -----------------------------------------------------------------
# settings
# -----------------------------------------------------------------

checks=0
while [ $checks -lt 3 ] && [ ! -w "$PWD" ]; do
    sleep 1
    checks=$((checks + 1))
done

START=$(date +%s)
REVISION=$(git rev-parse --short HEAD 2>/dev/null || echo unknown)
echo "revision $REVISION, started at $START"

export MASTER_ADDR=$(hostname) MASTER_PORT=$((15000 + SLURM_JOB_ID % 15000))
srun bash -c 'RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS python distill.py --teacher big --student small'
