"""dsrun: from a bare GPU node to a finished model under DeepSpeed."""

__version__ = "0.1.0"
