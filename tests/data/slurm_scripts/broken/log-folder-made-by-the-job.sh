#!/bin/bash
#SBATCH --job-name=pose
#SBATCH --gpus-per-node=1
#SBATCH --time=5:00:00
#SBATCH --output=pose-logs/%j.out

# The logs of old runs are kept for a month, see the wiki of the group.
# Questions: the channel of the cluster.

case $(uname -m) in
x86_64) arch=x86 ;;
aarch64) arch=arm ;;
*) arch=other ;;
esac
echo "architecture: $arch"

START=$(date +%s)
REVISION=$(git rev-parse --short HEAD 2>/dev/null || echo unknown)
echo "revision $REVISION, started at $START"

mkdir -p pose-logs checkpoints
source ~/envs/vision/bin/activate
python train_pose.py --save checkpoints
