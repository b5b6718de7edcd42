#!/bin/bash
#SBATCH --job-name=tts
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --gres=gpu:2
#SBATCH --time=9:30:00
#SBATCH --output=tts-%j.out

START=$(date +%s)
REVISION=$(git rev-parse --short HEAD 2>/dev/null || echo unknown)
echo "revision $REVISION, started at $START"

export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_PORT=$((14000 + SLURM_JOB_ID % 6000))
export WORLD_SIZE=$SLURM_NTASKS

cat > run-$SLURM_JOB_ID.sh <<EOF
#!/bin/bash
export RANK=$SLURM_PROCID
python train_tts.py --corpus ljspeech
EOF

srun bash run-$SLURM_JOB_ID.sh
