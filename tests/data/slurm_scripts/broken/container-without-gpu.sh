#!/bin/bash
#SBATCH --job-name=sif
#SBATCH --nodes=1
#SBATCH --gpus-per-node=2
#SBATCH --time=3:00:00
#SBATCH --output=sif-%j.log

export PYTHONUNBUFFERED=1 PYTHONFAULTHANDLER=1

# -----------------------------------------------------------------
# settings
# -----------------------------------------------------------------

START=$(date +%s)
REVISION=$(git rev-parse --short HEAD 2>/dev/null || echo unknown)
echo "revision $REVISION, started at $START"

module load apptainer
srun apptainer exec --bind $PWD torch.sif torchrun --standalone --nproc_per_node=2 train_sif.py
