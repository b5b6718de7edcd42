#!/bin/bash
#SBATCH -J gemma-ft
#SBATCH -n 1
#SBATCH --gres=gpu:2
#SBATCH -t 8:00:00
#SBATCH -o gemma-%j.log

umask 027

checks=0
while [ $checks -lt 3 ] && [ ! -w "$PWD" ]; do
    sleep 1
    checks=$((checks + 1))
done

test -d figures || mkdir figures

cd "$SLURM_SUBMIT_DIR" || exit 1

source ~/envs/llm/bin/activate
huggingface-cli login --token hf_NotARealTokenOfAnybodyAnywhereXy
torchrun --standalone --nproc_per_node=2 train_gemma.py --data chats.jsonl
