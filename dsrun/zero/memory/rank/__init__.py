"""What one rank holds: states, activations, the loss, buffers, in bytes."""
