"""Jobs: they answer prepared requests, and record and save their cost.

    shared      requests in general and the request cache; batches that fit into memory, and measured forward passes
    generation  from canvases to strings, in groups of requests that may share a batch
    likelihood  from windows to log-likelihoods

`lm.py` and `server.py` prepare the requests.
"""
