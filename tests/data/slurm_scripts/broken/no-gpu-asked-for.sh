#!/bin/bash
#SBATCH --job-name=nerf
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=16
#SBATCH --mem=120G
#SBATCH --time=20:00:00
#SBATCH --output=nerf-%j.log

export PYTHONUNBUFFERED=1 PYTHONFAULTHANDLER=1

# -----------------------------------------------------------------
# settings
# -----------------------------------------------------------------

test -d figures || mkdir figures

START=$(date +%s)
REVISION=$(git rev-parse --short HEAD 2>/dev/null || echo unknown)
echo "revision $REVISION, started at $START"

source ~/envs/nerf/bin/activate
torchrun --standalone --nproc_per_node=2 train_nerf.py --scene lego
