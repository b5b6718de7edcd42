#!/bin/bash -l
#SBATCH -J bert
#SBATCH -p gpu
#SBATCH -t 8:00:00
#SBATCH --gres=gpu:1   # one is enough
#SBATCH --mem=32G
module load python/3.11
conda activate bert
python train.py --epochs 3
