"""What the web applications share: the door in front of them, refusals, static files, and serving on a port."""
