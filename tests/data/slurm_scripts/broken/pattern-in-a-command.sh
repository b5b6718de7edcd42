#!/bin/bash
#SBATCH --job-name=notes
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --gpus-per-node=4
#SBATCH --time=8:00:00
#SBATCH --output=notes-%j.log

set -e
mkdir -p "runs/$SLURM_JOB_NAME"
git rev-parse HEAD >"runs/$SLURM_JOB_NAME/revision" 2>/dev/null || true
cp runs/%x/revision last-revision

torchrun --standalone --nproc_per_node=4 train_notes.py
