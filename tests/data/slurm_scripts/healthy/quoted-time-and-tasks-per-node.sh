#!/bin/bash
#SBATCH --job-name="graph net"
#SBATCH --time="2:00:00"
#SBATCH --nodes="2"
#SBATCH --tasks-per-node=4
#SBATCH --gres="gpu:4"
#SBATCH --comment='weekly run, see the wiki'
#SBATCH --output="graph-%j.log"

umask 027

test -d figures || mkdir figures

export NCCL_IB_DISABLE=0
export NCCL_SOCKET_NTHREADS=4
export FI_PROVIDER=efa

export NCCL_DEBUG=WARN
export TORCH_NCCL_ASYNC_ERROR_HANDLING=1

export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_PORT=$(python3 -c 'import os; print(20000 + int(os.environ["SLURM_JOB_ID"]) % 10000)')
export WORLD_SIZE=$((SLURM_NNODES * 4))

srun bash -c 'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID python train_graph.py --hidden 512 --layers 5'
