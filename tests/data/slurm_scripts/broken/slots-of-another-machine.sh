#!/bin/bash
#SBATCH --job-name=pythia
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --time=1-00:00:00
#SBATCH --output=pythia-%j.log

OUT=runs/${SLURM_JOB_NAME:-run}-$SLURM_JOB_ID
mkdir -p "$OUT"

set -e
source ~/envs/ds/bin/activate
HOSTFILE=hostfile.$SLURM_JOB_ID

for node in $(scontrol show hostnames "$SLURM_JOB_NODELIST"); do
    echo "$node slots=8"
done > $HOSTFILE

deepspeed --hostfile=$HOSTFILE --master_port=$((15000 + SLURM_JOB_ID % 15000)) \
    train_pythia.py --deepspeed_config ds_z1.json
