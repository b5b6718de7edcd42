#!/bin/bash
#SBATCH --job-name=ner
#SBATCH --ntasks=1
#SBATCH --gpus-per-node=1
#SBATCH --time=2:00:00
#SBATCH --output=ner-%j.log

cd "$SLURM_SUBMIT_DIR" || exit 1

if [ -n "${DEBUG:-}" ]; then
    set -x
fi

export HF_HOME=$HOME/cache/huggingface
export HF_DATASETS_OFFLINE=1
export TRANSFORMERS_OFFLINE=1

source ~/envs/nlp/bin/activate
python train_ner.py --conll data/conll03
echo "finished at $(date)"
