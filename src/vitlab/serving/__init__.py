"""The HTTP server: `vitlab serve MODEL`. `config.py` has its limits, `app.py` its endpoints, `server.py` runs it.

A request's way: `server.py` (bytes to a request), `app.py` (who may ask), `requests.py` (a body to images), `models.py` (images
of all clients to batches of one model), `app.py` (the answer).
"""
