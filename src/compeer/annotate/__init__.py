"""Annotation by people: blind, double, adjudicated, with every change kept as an event."""
