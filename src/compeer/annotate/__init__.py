"""Annotation by people: blind, double, adjudicated, with every change kept as an event.

`store` keeps events and brings the tables (`schema`) up to date by `events`; `backup` copies and verifies it. `people`
and `access` say who may do what, `projects` and `items` what is annotated; `queue` and `labels` are the work itself,
`metrics` and `results` what it leads to. `app` serves it all over HTTP, with the forms of `forms`.
"""
