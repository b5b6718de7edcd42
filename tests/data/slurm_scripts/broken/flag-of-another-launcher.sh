#!/bin/bash
#SBATCH -J mixed
#SBATCH -n 1
#SBATCH --gres=gpu:2
#SBATCH -t 3:00:00
#SBATCH -o mixed-%j.log

echo "start: $(date)"
echo "host: $(hostname), job: $SLURM_JOB_ID"

export NCCL_IB_DISABLE=0
export NCCL_SOCKET_NTHREADS=4
export FI_PROVIDER=efa

free -g | head -n 2
df -h /tmp | tail -n 1

readonly PROJECT=${PROJECT:-lab}
echo "project $PROJECT"

export HF_HOME=$HOME/cache/huggingface
export HF_DATASETS_OFFLINE=1
export TRANSFORMERS_OFFLINE=1

source ~/envs/nlp/bin/activate
accelerate launch --nproc_per_node 2 --main_process_port $((15000 + SLURM_JOB_ID % 15000)) --mixed_precision bf16 train_mixed.py
