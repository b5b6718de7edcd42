#!/bin/bash
#SBATCH --job-name=sweep
#SBATCH --nodes=1
#SBATCH --ntasks=4
#SBATCH --gres=gpu:4
#SBATCH --cpus-per-task=4
#SBATCH --mem=32G
#SBATCH --time=05:00:00
#SBATCH --output=sweep-%j.out

export HF_HOME=$HOME/cache/huggingface
export HF_DATASETS_OFFLINE=1
export TRANSFORMERS_OFFLINE=1

# The logs of old runs are kept for a month, see the wiki of the group.
# Questions: the channel of the cluster.

# Four trainings side by side, each with a task and a GPU of its own.
for seed in 1 2 3 4; do
    srun --exact --nodes=1 --ntasks=1 --gpus-per-task=1 --cpus-per-task=4 --mem=8G \
        --output="seed-$seed.log" python train_small.py --seed "$seed" &
done

failed=0
while [ -n "$(jobs -p)" ]; do
    wait -n || failed=1
done
exit "$failed"
