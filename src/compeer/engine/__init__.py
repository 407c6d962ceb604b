"""How tokens are made: one loop for rows on torch or a CPU's engine, rollouts in bulk, and probabilities of answers.

`rows` what a row and a backend are · `batching` the loop · `torch_table` and `cpu_table` the two backends, `int8` and
`llama` what computes for the second · `rollouts` many outputs by CUDA graphs · `answers` probabilities of answers ·
`sampling` how a token is chosen · `network` what transformers loads · `gguf` files for and from llama.cpp.
"""

from compeer.engine.rows import Backend, Ending, ModelFiles, NotWritten, Row, Sampling

__all__ = ["Backend", "Ending", "ModelFiles", "NotWritten", "Row", "Sampling"]
