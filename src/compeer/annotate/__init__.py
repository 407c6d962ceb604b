"""Annotation by people: blind, double, adjudicated, with every change kept as an event.

`store.py` keeps events and brings the tables up to date (`apply.py`), `people.py` and `logins.py` say who may come in,
`projects.py` and `items.py` what is annotated; `queue.py`, `passing.py` and `labels.py` are the work itself,
`consensus.py` and `agreement.py` pure figures, which `dashboard.py` shows; `progress.py` says how far somebody is,
`looking.py` what admins see of single items; `exchange.py` and `label_studio.py` take
labels out and in, `erase.py` deletes dialogues, `backup.py` copies and verifies a store.
"""
