"""Talking to language models: in this process, behind an endpoint, or from a script; and sentence embeddings."""

from compeer.models.base import EndpointSettings, Failure, Generation, Message, Request, Sampling, TextModel, ask
from compeer.models.cache import AnswerCache, CachedModel
from compeer.models.client import EndpointModel
from compeer.models.costs import CostEstimate, Counters, counters_table, estimate, live_counters
from compeer.models.packaged import PACKAGED_FILES, packaged_base, packaged_embedder
from compeer.models.resolve import ModelSettings, open_model
from compeer.models.scripted import ScriptedModel

__all__ = [
    "PACKAGED_FILES",
    "AnswerCache",
    "CachedModel",
    "CostEstimate",
    "Counters",
    "EndpointModel",
    "EndpointSettings",
    "Failure",
    "Generation",
    "Message",
    "ModelSettings",
    "Request",
    "Sampling",
    "ScriptedModel",
    "TextModel",
    "ask",
    "counters_table",
    "estimate",
    "live_counters",
    "open_model",
    "packaged_base",
    "packaged_embedder",
]
