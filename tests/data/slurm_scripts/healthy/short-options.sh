#!/bin/bash
#SBATCH -J convnext
#SBATCH -A imaging
#SBATCH -p gpu
#SBATCH -N2
#SBATCH -n8
#SBATCH --ntasks-per-node=4
#SBATCH -G 8
#SBATCH --gpus-per-node=4
#SBATCH -t2-12
#SBATCH -oconvnext-%j.out
ulimit -n 4096

export TRITON_CACHE_DIR=/tmp/triton-$SLURM_JOB_ID
export TORCHINDUCTOR_CACHE_DIR=/tmp/inductor-$SLURM_JOB_ID

export HF_HOME=$HOME/cache/huggingface
export HF_DATASETS_OFFLINE=1
export TRANSFORMERS_OFFLINE=1

export MASTER_ADDR=$(scontrol show hostname $SLURM_NODELIST | head -n 1)
export MASTER_PORT=$((11000 + SLURM_JOBID % 9000))
cd $SLURM_SUBMIT_DIR
exec srun -l -u bash -c "RANK=\$SLURM_PROCID LOCAL_RANK=\$SLURM_LOCALID WORLD_SIZE=\$SLURM_NTASKS python train_convnext.py --size tiny"
