#!/bin/bash
#SBATCH --job-name=behind
#SBATCH --nodes=1
#SBATCH --gpus-per-node=2
#SBATCH --time=3:00:00
#SBATCH --output=behind-%j.log

if [ -n "${DEBUG:-}" ]; then
    set -x
fi

echo "start: $(date)"
echo "host: $(hostname), job: $SLURM_JOB_ID"

# The logs of old runs are kept for a month, see the wiki of the group.
# Questions: the channel of the cluster.

export HF_HOME=$HOME/cache/huggingface
export HF_DATASETS_OFFLINE=1
export TRANSFORMERS_OFFLINE=1

source ~/envs/nlp/bin/activate
torchrun --standalone train_behind.py --nproc_per_node=2 --epochs 3
