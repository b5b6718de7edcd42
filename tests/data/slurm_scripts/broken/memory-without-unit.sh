#!/bin/bash
#SBATCH -J unit
#SBATCH -n 1
#SBATCH --gres=gpu:1
#SBATCH --mem=64
#SBATCH -t 3:00:00
#SBATCH -o unit-%j.log

cd "$SLURM_SUBMIT_DIR" || exit 1

log() { echo "[$(date +%H:%M:%S)] $*"; }
log "nodes: $SLURM_JOB_NODELIST"

START=$(date +%s)
REVISION=$(git rev-parse --short HEAD 2>/dev/null || echo unknown)
echo "revision $REVISION, started at $START"

echo "start: $(date)"
echo "host: $(hostname), job: $SLURM_JOB_ID"

case $(uname -m) in
x86_64) arch=x86 ;;
aarch64) arch=arm ;;
*) arch=other ;;
esac
echo "architecture: $arch"

source ~/envs/nlp/bin/activate
python train_unit.py --workers 8
