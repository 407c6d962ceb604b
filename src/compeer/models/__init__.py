"""Talking to language models: in this process, behind an endpoint, or from a script; and sentence embeddings."""

from compeer.models.base import Failure, Generation, Message, Request, Sampling, TextModel, ask
from compeer.models.cache import AnswerCache, CachedModel
from compeer.models.counters import Counters, counters_shown, counters_table
from compeer.models.embedded import PACKAGED, embedded_embedder, embedded_model
from compeer.models.endpoint import EndpointModel, EndpointSettings
from compeer.models.estimate import Estimate, estimate
from compeer.models.opening import ModelSettings, open_model
from compeer.models.scripted import ScriptedModel

__all__ = [
    "PACKAGED",
    "AnswerCache",
    "CachedModel",
    "Counters",
    "EndpointModel",
    "EndpointSettings",
    "Estimate",
    "Failure",
    "Generation",
    "Message",
    "ModelSettings",
    "Request",
    "Sampling",
    "ScriptedModel",
    "TextModel",
    "ask",
    "counters_shown",
    "counters_table",
    "embedded_embedder",
    "embedded_model",
    "estimate",
    "open_model",
]
