#!/bin/bash
#SBATCH --job-name=memory
#SBATCH --ntasks=1
#SBATCH --gpus=1
#SBATCH --mem=64G
#SBATCH --mem-per-cpu=8G
#SBATCH --time=3:00:00
#SBATCH --output=memory-%j.log

umask 027

trap 'echo "exit code $?"' EXIT

OUT=runs/${SLURM_JOB_NAME:-run}-$SLURM_JOB_ID
mkdir -p "$OUT"

export NCCL_DEBUG=WARN
export TORCH_NCCL_ASYNC_ERROR_HANDLING=1

for v in SLURM_JOB_ID SLURM_JOB_NODELIST SLURM_JOB_NAME; do
    printf '%s=%s\n' "$v" "${!v}"
done

source ~/envs/nlp/bin/activate
python train_memory.py
