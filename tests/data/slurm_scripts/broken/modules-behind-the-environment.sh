#!/bin/bash
#SBATCH -J purged
#SBATCH -n 1
#SBATCH --gres=gpu:1
#SBATCH -t 3:00:00
#SBATCH -o purged-%j.log

umask 027

if [ -n "${DEBUG:-}" ]; then
    set -x
fi

export WANDB_MODE=offline WANDB_DIR=$PWD/wandb
mkdir -p "$WANDB_DIR"

cat <<INFO
job:    $SLURM_JOB_ID
nodes:  $SLURM_JOB_NODELIST
folder: $PWD
INFO

source ~/envs/nlp/bin/activate
module purge
module load cuda/12.1 python/3.11

python train_purged.py --bf16
