"""What the commands share when they print."""

from __future__ import annotations


def plain(text: str) -> str:
    """Text that rich prints as it is."""
    from rich.markup import escape

    return escape(text)


def tell_unknown_place(locale: str | None) -> None:
    """Says so where a locale was given that names no country whose numbers for help are known."""
    from compeer.progress import console
    from compeer.safety.resources import load_resources

    resources = load_resources()
    if locale and resources.country(locale) is None:
        known = ", ".join(sorted(resources.countries))
        told = f"No numbers for help are known for the locale '{locale}', so none is named. Countries: {known}."
        console.print(f"[yellow]{plain(told)}[/]", highlight=False, soft_wrap=True)


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
