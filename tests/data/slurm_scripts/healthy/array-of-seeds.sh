#!/bin/bash
#SBATCH --job-name=seeds
#SBATCH --array=0-3%4
#SBATCH --gpus=1
#SBATCH --cpus-per-task=6
#SBATCH --mem=24G
#SBATCH --time=03:00:00
#SBATCH --output=seed-%A_%a.out

cd "$SLURM_SUBMIT_DIR" || exit 1

# The logs of old runs are kept for a month, see the wiki of the group.
# Questions: the channel of the cluster.

export TRITON_CACHE_DIR=/tmp/triton-$SLURM_JOB_ID
export TORCHINDUCTOR_CACHE_DIR=/tmp/inductor-$SLURM_JOB_ID

module load python/3.10
source .venv/bin/activate

rates=(1e-5 3e-5 1e-4 3e-4)
lr=${rates[$SLURM_ARRAY_TASK_ID]}

python train_classifier.py --lr "$lr" --seed $((1000 + SLURM_ARRAY_TASK_ID)) --out "out/$SLURM_ARRAY_TASK_ID"
