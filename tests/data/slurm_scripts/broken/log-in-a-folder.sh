#!/bin/bash
#SBATCH -J folder
#SBATCH -n 1
#SBATCH --gres=gpu:1
#SBATCH -t 4:00:00
#SBATCH -o slurm-logs/%x-%j.out

# -----------------------------------------------------------------
# settings
# -----------------------------------------------------------------

umask 027

export TRITON_CACHE_DIR=/tmp/triton-$SLURM_JOB_ID
export TORCHINDUCTOR_CACHE_DIR=/tmp/inductor-$SLURM_JOB_ID

cd "$SLURM_SUBMIT_DIR" || exit 1

export NCCL_IB_DISABLE=0
export NCCL_SOCKET_NTHREADS=4
export FI_PROVIDER=efa

eval "$(conda shell.bash hook)"
conda activate nlp
python train_folder.py --warmup 500
