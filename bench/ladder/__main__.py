import sys

from bench.ladder import main

sys.exit(0 if main(sys.argv[1:]) else 1)
