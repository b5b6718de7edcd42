"""`make bench-gpu`: correctness of everything that only a GPU can run, then timings, and their table."""
