#!/bin/bash
#SBATCH --job-name=toomany
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --gpus-per-node=2
#SBATCH --time=3:00:00
#SBATCH --output=toomany-%j.log

export CUDA_DEVICE_MAX_CONNECTIONS=1
export TOKENIZERS_PARALLELISM=false

case $(uname -m) in
x86_64) arch=x86 ;;
aarch64) arch=arm ;;
*) arch=other ;;
esac
echo "architecture: $arch"

test -d figures || mkdir figures

export NCCL_IB_DISABLE=0
export NCCL_SOCKET_NTHREADS=4
export FI_PROVIDER=efa

export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_PORT=$((15000 + SLURM_JOB_ID % 15000))
srun --nodes=4 --ntasks=4 bash -c 'RANK=$SLURM_PROCID WORLD_SIZE=4 python train_toomany.py'
