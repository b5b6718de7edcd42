"""Benchmarks against what a user would pick instead; each prints ratios measured in one run."""
