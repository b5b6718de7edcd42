#!/bin/bash
#SBATCH --job-name=lm-eval
#SBATCH --nodes=1
#SBATCH --gpus-per-node=1
#SBATCH --time=2:00:00
#SBATCH --output=$HOME/eval-%j.log

test -d figures || mkdir figures

export NCCL_DEBUG=WARN
export TORCH_NCCL_ASYNC_ERROR_HANDLING=1

echo "start: $(date)"
echo "host: $(hostname), job: $SLURM_JOB_ID"

export CUDA_DEVICE_MAX_CONNECTIONS=1
export TOKENIZERS_PARALLELISM=false

checks=0
while [ $checks -lt 3 ] && [ ! -w "$PWD" ]; do
    sleep 1
    checks=$((checks + 1))
done

set -euo pipefail
source ~/envs/llm/bin/activate
python eval_harness.py --tasks hellaswag,arc --model pythia-410m
