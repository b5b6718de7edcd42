#!/bin/bash
#SBATCH --job-name=overwrite
#SBATCH --array=1-3
#SBATCH --gpus=1
#SBATCH --time=3:00:00
#SBATCH --output=overwrite.log

export NCCL_IB_DISABLE=0
export NCCL_SOCKET_NTHREADS=4
export FI_PROVIDER=efa

# The logs of old runs are kept for a month, see the wiki of the group.
# Questions: the channel of the cluster.

checks=0
while [ $checks -lt 3 ] && [ ! -w "$PWD" ]; do
    sleep 1
    checks=$((checks + 1))
done

export HF_HOME=$HOME/cache/huggingface
export HF_DATASETS_OFFLINE=1
export TRANSFORMERS_OFFLINE=1

echo "start: $(date)"
echo "host: $(hostname), job: $SLURM_JOB_ID"

source ~/envs/nlp/bin/activate
python train_overwrite.py --seed $SLURM_ARRAY_TASK_ID
