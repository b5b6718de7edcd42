#!/bin/bash
#SBATCH --job-name=perceiver
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=2
#SBATCH --time=9:00:00
#SBATCH --output=perceiver-%j.log

case $(uname -m) in
x86_64) arch=x86 ;;
aarch64) arch=arm ;;
*) arch=other ;;
esac
echo "architecture: $arch"

export NCCL_IB_DISABLE=0
export NCCL_SOCKET_NTHREADS=4
export FI_PROVIDER=efa

export NCCL_DEBUG=WARN
export TORCH_NCCL_ASYNC_ERROR_HANDLING=1

export HOST=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export PORT=$((15000 + SLURM_JOB_ID % 15000))
srun bash -c 'torchrun --nnodes=2 --nproc_per_node=2 --rdzv_id=$RANDOM \
    --rdzv_backend=c10d --rdzv_endpoint=$HOST:$PORT train_perceiver.py'
