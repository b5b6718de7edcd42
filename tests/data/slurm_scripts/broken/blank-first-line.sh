
#!/bin/bash
#SBATCH --job-name=caption
#SBATCH --ntasks=1
#SBATCH --gpus=1
#SBATCH --time=3:00:00
#SBATCH --output=caption-%j.log

module load cuda/12.1
source ~/envs/vision/bin/activate
python train_caption.py --coco data/coco
