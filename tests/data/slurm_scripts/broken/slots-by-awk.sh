#!/bin/bash
#SBATCH -J dolly
#SBATCH -N 2
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:4
#SBATCH -t 10:00:00
#SBATCH -o dolly-%j.log

readonly PROJECT=${PROJECT:-lab}
echo "project $PROJECT"

cat <<INFO
job:    $SLURM_JOB_ID
nodes:  $SLURM_JOB_NODELIST
folder: $PWD
INFO

set -euo pipefail
export DS_HOSTS=$PWD/hosts.$SLURM_JOB_ID
scontrol show hostnames $SLURM_JOB_NODELIST | awk '{ print $1 " slots=2" }' > $DS_HOSTS
MASTER_ADDR=$(head -n 1 $DS_HOSTS | awk '{ print $1 }')

deepspeed -H $DS_HOSTS --master_addr $MASTER_ADDR --master_port $((18000 + SLURM_JOB_ID % 8000)) \
    train_dolly.py --deepspeed z2.json --epochs 2
