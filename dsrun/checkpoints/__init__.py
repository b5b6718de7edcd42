"""What lies in checkpoints, read without torch."""
