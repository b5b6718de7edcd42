#!/bin/bash
#SBATCH --job-name=speech-lm
#SBATCH --nodes=1
#SBATCH --ntasks=2
#SBATCH --gpus-per-node=2
#SBATCH --time=20:00:00
#SBATCH --signal=B:USR1@300
#SBATCH --output=slm-%j.log

free -g | head -n 2
df -h /tmp | tail -n 1

readonly PROJECT=${PROJECT:-lab}
echo "project $PROJECT"

set -u
export MASTER_ADDR=$(hostname) MASTER_PORT=$((15000 + SLURM_JOB_ID % 15000)) WORLD_SIZE=2

forward() { scancel --signal=USR1 "$SLURM_JOB_ID"; }
trap forward USR1

srun bash -c 'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID exec python train_slm.py --save-takes-minutes' &
pid=$!
wait "$pid"
