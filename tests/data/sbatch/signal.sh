#!/bin/bash
#SBATCH --job-name=t
#SBATCH --time=10:00:00
#SBATCH --gpus-per-node=1
#SBATCH --signal=USR1@120
trap 'touch stop' USR1
python train.py &
wait
