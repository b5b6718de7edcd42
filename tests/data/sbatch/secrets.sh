#!/bin/bash
#SBATCH --gres=gpu:1
export WANDB_API_KEY=0123456789abcdef0123456789abcdef01234567
python train.py --hub_token hf_notARealTokenAtAll00
echo done
