"""compeer: empathetic reasoning for emotional support, from corpora to a supporter one can talk to."""

__version__ = "0.1.0"
