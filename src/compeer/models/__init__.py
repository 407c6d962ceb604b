"""Talking to language models: in this process, behind an endpoint, or from a script; and sentence embeddings."""

from compeer.models.base import EndpointSettings, Failure, Generation, Message, Request, Sampling, TextModel, ask
from compeer.models.cache import AnswerCache
from compeer.models.client import EndpointModel
from compeer.models.costs import Counters, counters_table
from compeer.models.packaged import PACKAGED_FILES, packaged_base, packaged_embedder
from compeer.models.resolve import ModelSettings, open_model

__all__ = [
    "PACKAGED_FILES",
    "AnswerCache",
    "Counters",
    "EndpointModel",
    "EndpointSettings",
    "Failure",
    "Generation",
    "Message",
    "ModelSettings",
    "Request",
    "Sampling",
    "TextModel",
    "ask",
    "counters_table",
    "open_model",
    "packaged_base",
    "packaged_embedder",
]
