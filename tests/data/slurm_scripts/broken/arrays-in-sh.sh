#!/bin/sh
#SBATCH -J lora-sweep
#SBATCH -n 1
#SBATCH --gres=gpu:1
#SBATCH --array=0-2
#SBATCH -t 1:00:00
#SBATCH -o sweep-%A-%a.log

ranks=(4 8 16)
r=${ranks[$SLURM_ARRAY_TASK_ID]}
python train_lora_sweep.py --rank "$r"
