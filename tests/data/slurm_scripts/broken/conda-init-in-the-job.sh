#!/bin/bash
#SBATCH --job-name=deberta
#SBATCH --ntasks=1
#SBATCH --gres=gpu:2
#SBATCH --time=07:00:00
#SBATCH --output=deberta-%j.log

log() { echo "[$(date +%H:%M:%S)] $*"; }
log "nodes: $SLURM_JOB_NODELIST"

checks=0
while [ $checks -lt 3 ] && [ ! -w "$PWD" ]; do
    sleep 1
    checks=$((checks + 1))
done

module load anaconda3
conda init bash
conda activate nli

export TOKENIZERS_PARALLELISM=false
nvidia-smi
torchrun --standalone --nproc_per_node=2 train_nli.py --model deberta-v3-large --task mnli
