"""The scripts of research/guard as modules: `prepare` and `train`."""

import sys
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "research" / "guard"
sys.path.insert(0, str(FOLDER))
try:
    import prepare
    import train
finally:
    sys.path.remove(str(FOLDER))

__all__ = ["FOLDER", "prepare", "train"]
