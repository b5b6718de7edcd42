"""`dsrun certify` at work: a small model of the same architecture is built, trained in every way, and looked at."""
