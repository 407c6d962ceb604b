"""compeer: empathetic reasoning for emotional support, from corpora to a supporter one can talk to."""

import os

__version__ = "0.1.0"

if "OMP_WAIT_POLICY" not in os.environ:
    # A thread that has done its part of a matrix looks for the others' 300,000 times before it sleeps: 17 ms on Intel's
    # processors. Where another process wants the core, each such meeting takes that long. Read when torch is loaded.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
