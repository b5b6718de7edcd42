#!/bin/bash
#SBATCH -J lit-gpt
#SBATCH -N 2
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:4
#SBATCH -t 3:00:00
#SBATCH -o litgpt-%j.log

checks=0
while [ $checks -lt 3 ] && [ ! -w "$PWD" ]; do
    sleep 1
    checks=$((checks + 1))
done

OUT=runs/${SLURM_JOB_NAME:-run}-$SLURM_JOB_ID
mkdir -p "$OUT"

log() { echo "[$(date +%H:%M:%S)] $*"; }
log "nodes: $SLURM_JOB_NODELIST"

test -d figures || mkdir figures

source ~/envs/lit/bin/activate
srun python train_litgpt.py fit --trainer.num_nodes=2 --trainer.devices=4
