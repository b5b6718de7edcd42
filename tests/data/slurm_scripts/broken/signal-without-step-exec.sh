#!/bin/bash
#SBATCH --job-name=rl-agent
#SBATCH --ntasks=1
#SBATCH --gres=gpu:1
#SBATCH --mem=48G
#SBATCH --time=2-00:00:00
#SBATCH --signal=SIGUSR1@180
#SBATCH --output=agent-%j.log

if [ -n "${DEBUG:-}" ]; then
    set -x
fi

free -g | head -n 2
df -h /tmp | tail -n 1

readonly PROJECT=${PROJECT:-lab}
echo "project $PROJECT"

eval "$(conda shell.bash hook)"
conda activate rl

# checkpoints on SIGUSR1
exec python train_agent.py --env breakout --steps 50000000
