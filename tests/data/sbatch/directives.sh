#!/bin/bash
#SBATCH --output=$HOME/logs/%j.out
#SBATCH --gpu-per-node=1
# SBATCH --mem=64G
#SBATCH --time=10h
cd project
#SBATCH --partition=gpu
python train.py
