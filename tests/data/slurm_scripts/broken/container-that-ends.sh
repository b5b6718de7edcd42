#!/bin/bash
#SBATCH --job-name=ends
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --gpus-per-node=4
#SBATCH --time=8:00:00
#SBATCH --output=ends-%j.log

apptainer exec --nv ~/images/torch.sif bash -c "source /opt/env.sh"

torchrun --standalone --nproc_per_node=4 train_ends.py
