"""Training of the learnt layers from labelled texts, the package's and a service's own."""
