#!/bin/bash
#SBATCH --job-name=bert-qa
#SBATCH --ntasks=1
#SBATCH --gres=gpu:2
#SBATCH --time=3:00:00
#SBATCH --output=qa-%j.log

free -g | head -n 2
df -h /tmp | tail -n 1

if [ -n "${DEBUG:-}" ]; then
    set -x
fi

export PYTHONUNBUFFERED=1 PYTHONFAULTHANDLER=1

checks=0
while [ $checks -lt 3 ] && [ ! -w "$PWD" ]; do
    sleep 1
    checks=$((checks + 1))
done

module load cuda/12.1
source ~/envs/nlp/bin/activate
python -m torch.distributed.run --standalone --nproc_per_node 1 run_qa.py --dataset squad "$@"
