#!/bin/bash
#SBATCH --job-name=t
#SBATCH --time=10:00:00
#SBATCH --gres=gpu:4
#SBATCH --output=logs/%j.out
mkdir -p logs
export CUDA_VISIBLE_DEVICES=0,1,2,3
conda activate torch
python train.py
