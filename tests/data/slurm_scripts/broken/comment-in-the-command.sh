#!/bin/bash
#SBATCH -J marian
#SBATCH -n 1
#SBATCH --gres=gpu:2
#SBATCH -t 20:00:00
#SBATCH -o marian-%j.log

checks=0
while [ $checks -lt 3 ] && [ ! -w "$PWD" ]; do
    sleep 1
    checks=$((checks + 1))
done

readonly PROJECT=${PROJECT:-lab}
echo "project $PROJECT"

set -e
torchrun --standalone --nproc_per_node=2 \
    # --master_port 29500 \
    train_marian.py --pair en-fi
