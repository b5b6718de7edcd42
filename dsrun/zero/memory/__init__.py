"""What a training run needs of GPU, host and disk memory, from the model's config.json alone."""
