#!/bin/bash
#SBATCH --job-name=coqui
#SBATCH --nodes=1
#SBATCH --gpus-per-node=2
#SBATCH --time=10:00:00
#SBATCH --output=coqui-%j.log

case $(uname -m) in
x86_64) arch=x86 ;;
aarch64) arch=arm ;;
*) arch=other ;;
esac
echo "architecture: $arch"

export TRITON_CACHE_DIR=/tmp/triton-$SLURM_JOB_ID
export TORCHINDUCTOR_CACHE_DIR=/tmp/inductor-$SLURM_JOB_ID

NGPU=4
source ~/envs/audio/bin/activate
torchrun --standalone --nproc_per_node=$NGPU train_vits.py --speaker 3
