"""Talking to language models: in this process, behind an endpoint, or from a script; and sentence embeddings."""

from compeer.models.base import CallSettings, Failure, Generation, Message, Request, Sampling, TextModel, ask
from compeer.models.cache import AnswerCache
from compeer.models.client import EndpointModel
from compeer.models.costs import Counters, counters_table
from compeer.models.resolve import ModelSettings, model_folder, open_model

__all__ = ["AnswerCache", "CallSettings", "Counters", "EndpointModel", "Failure", "Generation", "Message"]
__all__ += ["ModelSettings", "Request", "Sampling", "TextModel", "ask", "counters_table", "model_folder", "open_model"]
