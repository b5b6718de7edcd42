#!/bin/bash
#SBATCH --job-name=ds-opt
#SBATCH --time=16:00:00
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --gres=gpu:8
#SBATCH --cpus-per-task=64
#SBATCH --mem=0
#SBATCH --output=ds-opt-%j.out

for v in SLURM_JOB_ID SLURM_JOB_NODELIST SLURM_JOB_NAME; do
    printf '%s=%s\n' "$v" "${!v}"
done

module load gcc/11 cuda/12.1
eval "$(conda shell.bash hook)"
conda activate deepspeed

export TOKENIZERS_PARALLELISM=false
export HF_HOME=$HOME/hf

deepspeed --num_gpus=8 --master_port $((30000 + SLURM_JOB_ID % 2000)) \
    run_clm.py \
    --deepspeed ds_config_zero3.json \
    --model_name_or_path opt-13b \
    --per_device_train_batch_size 2 \
    --output_dir opt-out
