#!/bin/bash
#SBATCH -J rnnt
#SBATCH -n 1
#SBATCH --gres=gpu:2
#SBATCH -t 9:00:00
#SBATCH -o rnnt-%j.log

readonly PROJECT=${PROJECT:-lab}
echo "project $PROJECT"

free -g | head -n 2
df -h /tmp | tail -n 1

START=$(date +%s)
REVISION=$(git rev-parse --short HEAD 2>/dev/null || echo unknown)
echo "revision $REVISION, started at $START"

source ~/envs/audio/bin/activate
DATA="~/data/librispeech"
torchrun --standalone --nproc_per_node=2 train_rnnt.py --data "$DATA" --vocab 1024
