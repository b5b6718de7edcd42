"""Hubs of models and data: the Hugging Face Hub and ModelScope."""
