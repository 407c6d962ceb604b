"""What the commands share when they print."""

from __future__ import annotations


def plain(text: str) -> str:
    """Text that rich prints as it is."""
    from rich.markup import escape

    return escape(text)


def silence_libraries() -> None:
    """No chatter from the libraries below."""
    import logging
    import warnings

    import datasets
    import transformers

    transformers.utils.logging.disable_progress_bar()
    datasets.disable_progress_bars()
    warnings.filterwarnings("ignore", module="(torch|transformers|trl|peft|accelerate)")
    logging.getLogger("transformers").setLevel(logging.ERROR)
