#!/bin/bash
#SBATCH -J prompts2
#SBATCH -n 1
#SBATCH --gres=gpu:1
#SBATCH -t 3:00:00
#SBATCH -o prompts2-%j.log

checks=0
while [ $checks -lt 3 ] && [ ! -w "$PWD" ]; do
    sleep 1
    checks=$((checks + 1))
done

export NCCL_IB_DISABLE=0
export NCCL_SOCKET_NTHREADS=4
export FI_PROVIDER=efa

set -e
write_prompts() {
    echo "writing prompts.txt"
}
write_prompts
cat >prompts.txt <<END
a red house
a blue house
    END
source ~/envs/diffusers/bin/activate
python train_prompts.py --file prompts.txt
