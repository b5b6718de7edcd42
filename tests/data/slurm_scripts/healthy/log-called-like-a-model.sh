#!/bin/bash
#SBATCH --job-name=hf_ds_gpt2_medium_openwebtext_run3
#SBATCH --output=hf_ds_gpt2_medium_openwebtext_run3.%j.log
#SBATCH --nodes=1
#SBATCH --gpus-per-node=4
#SBATCH --time=18:00:00

free -g | head -n 2
df -h /tmp | tail -n 1

START=$(date +%s)
REVISION=$(git rev-parse --short HEAD 2>/dev/null || echo unknown)
echo "revision $REVISION, started at $START"

set -e
RUN=hf_ds_gpt2_medium_openwebtext_run3
TOKENIZER=hf_internal_gpt2_bpe_50257_tokenizer_v2
export HF_HUB_OFFLINE=1
export HF_TOKEN=$(cat ~/.secrets/hf_token)

python tokenize_corpus.py --tokenizer "$TOKENIZER" --out "data/$RUN"

deepspeed --num_gpus 4 --master_port $((15000 + SLURM_JOB_ID % 15000)) train_gpt2.py \
    --deepspeed_config zero1.json --run_name "$RUN" --data "data/$RUN" 2>&1
