"""How tokens are made: rows written together by one loop, on torch or on llama.cpp, and probabilities of answers."""

from compeer.engine.batching import Batcher
from compeer.engine.rows import Ending, NotWritten, Row, Table

__all__ = ["Batcher", "Ending", "NotWritten", "Row", "Table"]
