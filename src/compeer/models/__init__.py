"""Talking to language models: in this process, behind an endpoint, or from a script; and sentence embeddings."""

from compeer.models.base import Failure, Generation, Message, Request, Sampling, TextModel, ask
from compeer.models.embedded import PACKAGED, embedded_embedder, embedded_model
from compeer.models.scripted import ScriptedModel

__all__ = [
    "PACKAGED",
    "Failure",
    "Generation",
    "Message",
    "Request",
    "Sampling",
    "ScriptedModel",
    "TextModel",
    "ask",
    "embedded_embedder",
    "embedded_model",
]
