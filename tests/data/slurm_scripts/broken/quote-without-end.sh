#!/bin/bash
#SBATCH -J prompts
#SBATCH -n 1
#SBATCH --gres=gpu:2
#SBATCH -t 3:00:00
#SBATCH -o prompts-%j.log

checks=0
while [ $checks -lt 3 ] && [ ! -w "$PWD" ]; do
    sleep 1
    checks=$((checks + 1))
done

source ~/envs/diffusers/bin/activate

# textual inversion of one concept
torchrun --standalone --nproc_per_node=2 train_inversion.py \
    --token "<cat>" \
    --prompt "a photo of <cat> \
    --steps 3000 \
    --out inversion-$SLURM_JOB_ID
