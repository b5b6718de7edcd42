#!/bin/bash
#SBATCH --job-name=depth
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --gpus-per-node=2
#SBATCH --time=7:00:00
#SBATCH --output=depth-%j.log

echo "start: $(date)"
echo "host: $(hostname), job: $SLURM_JOB_ID"

cd "$SLURM_SUBMIT_DIR" || exit 1

export HF_HOME=$HOME/cache/huggingface
export HF_DATASETS_OFFLINE=1
export TRANSFORMERS_OFFLINE=1

export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_PORT=$((15000 + SLURM_JOB_ID % 15000))
export WORLD_SIZE=$SLURM_NTASKS
srun bash -c 'export RANK=$SLURM_PROCID
    export LOCAL_RANK=$SLURM_PROCID
    python train_depth.py --kitti'
