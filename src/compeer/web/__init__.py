"""Two web applications: the chat (a page and the OpenAI-compatible API, with the guard around the supporter), and the
annotation workbench (`compeer.web.workbench`).

What the chat offers is loaded when it is asked for: the workbench needs none of the libraries that models do.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from compeer.web.app import ServeSettings, create_app
    from compeer.web.serving import serve

__all__ = ["ServeSettings", "create_app", "serve"]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("compeer.web.serving" if name == "serve" else "compeer.web.app"), name)
