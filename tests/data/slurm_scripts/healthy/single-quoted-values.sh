#!/bin/bash
#SBATCH --job-name='audio lm'
#SBATCH --time='1-00:00:00'
#SBATCH --nodes=2
#SBATCH --ntasks-per-node='1'
#SBATCH --gres='gpu:2'
#SBATCH --output=audio-%j.log

case $(uname -m) in
x86_64) arch=x86 ;;
aarch64) arch=arm ;;
*) arch=other ;;
esac
echo "architecture: $arch"

if [ -n "${DEBUG:-}" ]; then
    set -x
fi

export WANDB_NAME=hf_audio_lm_small_librilight_bs256_v2
export WANDB_MODE=offline
first=`scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1`
port=`expr 15000 + $SLURM_JOB_ID % 15000`

srun torchrun --nnodes=2 --nproc_per_node=2 --rdzv_backend=c10d \
    --rdzv_id="$SLURM_JOB_ID" --rdzv_endpoint="$first:$port" train_audio_lm.py --run-name "$WANDB_NAME"
