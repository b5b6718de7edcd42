"""From files and datasets to rows of token ids: sources, layouts, tokenising, blocks, cache, collating."""
