#!/bin/bash
#SBATCH --job-name=lora
#SBATCH --time=4:00:00
#SBATCH --nodes=1
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-gpu=8
#SBATCH --output=lora_%j.out

set -eo pipefail
cd "$SLURM_SUBMIT_DIR"
. ~/venvs/peft/bin/activate

config=accelerate-$SLURM_JOB_ID.yaml
cat <<EOF >"$config"
compute_environment: LOCAL_MACHINE
distributed_type: MULTI_GPU
num_machines: 1
num_processes: 4
machine_rank: 0
main_process_port: $((18000 + SLURM_JOB_ID % 10000))
mixed_precision: bf16
EOF

accelerate launch --config_file "$config" train_lora.py \
    --model_id llama-3-8b \
    --rank 16 --alpha 32 \
    --output_dir "lora-$SLURM_JOB_ID"
