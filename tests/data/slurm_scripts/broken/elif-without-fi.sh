#!/bin/bash
#SBATCH --job-name=sizes
#SBATCH --nodes=1
#SBATCH --gpus-per-node=1
#SBATCH --time=12:00:00
#SBATCH --output=sizes-%j.log

if [ -n "${DEBUG:-}" ]; then
    set -x
fi

export TRITON_CACHE_DIR=/tmp/triton-$SLURM_JOB_ID
export TORCHINDUCTOR_CACHE_DIR=/tmp/inductor-$SLURM_JOB_ID

source ~/envs/nlp/bin/activate
if [[ $SLURM_JOB_NAME == sizes ]]; then
    case ${SIZE:-s} in
    s) width=256 ;;
    m) width=512 ;;
    esac
elif [[ $SLURM_JOB_NAME == wide ]]; then
    width=1024

python train_sizes.py --width $width
