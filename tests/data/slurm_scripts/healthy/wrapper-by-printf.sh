#!/bin/bash
#SBATCH --job-name=tiny
#SBATCH --ntasks=4
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --gres=gpu:2
#SBATCH --time=02:30:00
#SBATCH --output=tiny-%j.log

set -e
export MASTER_ADDR="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n1)"
export MASTER_PORT="$((10000 + RANDOM % 20000))"

wrapper=rank-$SLURM_JOB_ID
printf '%s\n' '#!/bin/bash' \
    'export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS' \
    'exec "$@"' > $wrapper
chmod +x $wrapper

srun ./$wrapper python train_tiny.py --steps 1000
