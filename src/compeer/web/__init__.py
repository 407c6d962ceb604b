"""One web application: the chat page and the OpenAI-compatible API, both with the guard around the supporter."""

from compeer.web.app import ServeSettings, create_app
from compeer.web.serving import serve

__all__ = ["ServeSettings", "create_app", "serve"]
