#!/bin/bash
#SBATCH --job-name=bart
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --time=18:00:00
#SBATCH --output=bart-%j.log

export NCCL_IB_DISABLE=0
export NCCL_SOCKET_NTHREADS=4
export FI_PROVIDER=efa

module load python/3.11 cuda/12.1
source ~/envs/fairseq/bin/activate

export MASTER_PORT=$((15000 + SLURM_JOB_ID % 15000))
export WORLD_SIZE=$SLURM_NTASKS

srun bash -c 'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID python train_bart.py --max-tokens 4096'
