"""The stream of tests/benchmarks/batches.py in a process of its own, whose memory is counted."""

import sys

from tests.benchmarks.batches import stream

if __name__ == "__main__":
    stream(sys.argv[1], int(sys.argv[2]))
