#!/bin/bash
#SBATCH -J embed
#SBATCH -n 1
#SBATCH --gres=gpu:1
#SBATCH -t 1:30:00
#SBATCH -o embed-$SLURM_JOB_ID.out

test -d figures || mkdir figures

export PYTHONUNBUFFERED=1 PYTHONFAULTHANDLER=1

export HF_HOME=$HOME/cache/huggingface
export HF_DATASETS_OFFLINE=1
export TRANSFORMERS_OFFLINE=1

if [ -n "${DEBUG:-}" ]; then
    set -x
fi

cat <<INFO
job:    $SLURM_JOB_ID
nodes:  $SLURM_JOB_NODELIST
folder: $PWD
INFO

eval "$(conda shell.bash hook)"
conda activate st
python train_embed.py --pairs nli.tsv --loss mnrl
