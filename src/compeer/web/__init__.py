"""What the web applications share: the door in front of them, refusals, static files, and running on a port."""
