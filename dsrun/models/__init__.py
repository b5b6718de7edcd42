"""A model on this machine: its folder, the headers of its weights, its family."""
