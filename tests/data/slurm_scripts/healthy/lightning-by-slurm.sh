#!/bin/bash -l
#SBATCH --job-name=lit-unet
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --gres=gpu:4
#SBATCH --cpus-per-task=10
#SBATCH --time=0-10:00:00
#SBATCH --signal=SIGUSR1@90
#SBATCH --output=lit-%j.log

export NCCL_IB_DISABLE=0
export NCCL_SOCKET_NTHREADS=4
export FI_PROVIDER=efa

export NCCL_DEBUG=WARN
export TORCH_NCCL_ASYNC_ERROR_HANDLING=1

export CUDA_DEVICE_MAX_CONNECTIONS=1
export TOKENIZERS_PARALLELISM=false

# Lightning reads SLURM's variables: it wants as many tasks on a node as devices.
source ~/envs/lit/bin/activate
export NCCL_DEBUG=INFO
export PYTHONFAULTHANDLER=1
export SRUN_CPUS_PER_TASK=10

srun python train_lit.py fit --trainer.num_nodes=2 --trainer.devices=4 --trainer.strategy=ddp
