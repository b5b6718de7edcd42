#!/bin/bash
#SBATCH --job-name=image
#SBATCH --nodes=1
#SBATCH --gpus-per-node=1
#SBATCH --signal=USR1@120
#SBATCH --time=8:00:00
#SBATCH --output=image-%j.log

mkdir -p cache
apptainer exec --nv -B cache:/cache ~/images/torch.sif bash train.sh
