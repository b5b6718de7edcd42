#!/bin/bash
#SBATCH --job-name=lit
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=2
#SBATCH --gpus-per-node=2
#SBATCH --time=8:00:00
#SBATCH --output=lit-%j.log

export NCCL_DEBUG=WARN
python train_lit.py --trainer.strategy=ddp --trainer.devices=2
