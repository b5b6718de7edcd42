"""Tables of transformers that every rank would make anew; imported by the zygote, whose forks then share them.

How the weights of hundreds of architectures are named in their files: a thousand regular expressions, a second."""

from contextlib import suppress

with suppress(ImportError):  # it is not public
    from transformers.conversion_mapping import get_checkpoint_conversion_mapping

    get_checkpoint_conversion_mapping("llama")
