#!/bin/bash
#SBATCH --job-name=bert-mlm
#SBATCH --time=10:00:00
#SBATCH --gres=gpu:2
#SBATCH --cpus-per-task=16
#SBATCH --mem=64G
#SBATCH --output=mlm-%j.log

if [ -n "${DEBUG:-}" ]; then
    set -x
fi

. "$HOME/miniconda3/etc/profile.d/conda.sh"
conda activate mlm

which python
export OMP_NUM_THREADS=8

torchrun --standalone --nproc_per_node=2 run_mlm.py \
    --model_type bert \
    --dataset_name wikitext \
    --do_train --do_eval \
    --output_dir mlm-$SLURM_JOB_ID
