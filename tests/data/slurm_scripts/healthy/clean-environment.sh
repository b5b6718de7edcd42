#!/bin/bash
#SBATCH --job-name=clean
#SBATCH --export=NONE
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:2
#SBATCH --time=04:00:00
#SBATCH --output=clean-%j.log

# sbatch took nothing along, and srun would do the same: it must hand on what is set here.
export SLURM_EXPORT_ENV=ALL
source /opt/envs/speech/bin/activate

export NCCL_IB_DISABLE=0
export NCCL_SOCKET_NTHREADS=4
export FI_PROVIDER=efa

export HF_HOME=$HOME/cache/huggingface
export HF_DATASETS_OFFLINE=1
export TRANSFORMERS_OFFLINE=1

export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_PORT=$((13000 + SLURM_JOB_ID % 7000))

srun bash -c 'torchrun --nnodes 2 --nproc_per_node 2 --node_rank "$SLURM_NODEID" \
    --master_addr "$MASTER_ADDR" --master_port "$MASTER_PORT" train_speech.py'
