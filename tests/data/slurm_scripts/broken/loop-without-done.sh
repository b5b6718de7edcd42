#!/bin/bash
#SBATCH --job-name=three-seeds
#SBATCH --nodes=1
#SBATCH --gpus-per-node=1
#SBATCH --time=12:00:00
#SBATCH --output=three-%j.log

export CUDA_DEVICE_MAX_CONNECTIONS=1
export TOKENIZERS_PARALLELISM=false

export PYTHONUNBUFFERED=1 PYTHONFAULTHANDLER=1

case $(uname -m) in
x86_64) arch=x86 ;;
aarch64) arch=arm ;;
*) arch=other ;;
esac
echo "architecture: $arch"

set -e
module load python/3.11
for seed in 11 22 33; do
    out=runs/seed$seed
    mkdir -p $out
    python train_seed.py --seed $seed --out $out

ls -l runs
