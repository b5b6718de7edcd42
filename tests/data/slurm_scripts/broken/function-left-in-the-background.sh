#!/bin/bash
#SBATCH --job-name=left
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --gpus-per-node=4
#SBATCH --time=8:00:00
#SBATCH --output=left-%j.log

train() {
    torchrun --standalone --nproc_per_node=4 train_left.py --seed "$1"
}

source ~/envs/nlp/bin/activate
train 1 &
echo "started at $(date)"
