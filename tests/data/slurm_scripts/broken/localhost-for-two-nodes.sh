#!/bin/bash
#SBATCH --job-name=sam
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --gpus-per-node=2
#SBATCH --time=4:00:00
#SBATCH --output=sam-%j.log

export HF_HOME=$HOME/cache/huggingface
export HF_DATASETS_OFFLINE=1
export TRANSFORMERS_OFFLINE=1

free -g | head -n 2
df -h /tmp | tail -n 1

test -d figures || mkdir figures

echo "start: $(date)"
echo "host: $(hostname), job: $SLURM_JOB_ID"

cat <<INFO
job:    $SLURM_JOB_ID
nodes:  $SLURM_JOB_NODELIST
folder: $PWD
INFO

export MASTER_ADDR=127.0.0.1
export MASTER_PORT=$((15000 + SLURM_JOB_ID % 15000))
export WORLD_SIZE=$SLURM_NTASKS
srun bash -c 'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID python train_sam.py --prompts points "$@"' - "$@"
