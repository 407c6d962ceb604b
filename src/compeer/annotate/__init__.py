"""Annotation by people: blind, double, adjudicated, with every change kept as an event.

`store.py` keeps events and brings the tables (`schema.py`) up to date by `events.py`; `backup.py` copies and verifies
it. `people.py` and `access.py` say who may do what, `projects.py` and `items.py` what is annotated; `queue.py` and
`labels.py` are the work itself. `metrics.py` measures it, `results.py` hands out what it leads to. `app.py` serves it
all over HTTP, with the forms of `forms.py`.
"""
