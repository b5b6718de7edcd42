#!/bin/bash
#SBATCH -J clip
#SBATCH -N 2
#SBATCH -n 4
#SBATCH --ntasks-per-node=2
#SBATCH --gres=gpu:2
#SBATCH -t 16:00:00
#SBATCH -o clip.%j

START=$(date +%s)
REVISION=$(git rev-parse --short HEAD 2>/dev/null || echo unknown)
echo "revision $REVISION, started at $START"

set -eu
cat >wrap-$SLURM_JOB_ID.sh <<'EOF'
#!/bin/bash
export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS
export MASTER_PORT=$((18000 + SLURM_JOB_ID % 8000))
exec "$@"
EOF
chmod +x wrap-$SLURM_JOB_ID.sh

srun ./wrap-$SLURM_JOB_ID.sh python -u train_clip.py --epochs 32 --batch-size 256
