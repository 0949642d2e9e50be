"""Jobs: they answer prepared requests, and record and save their cost.

    prepared    requests in general; seeds, padding copies, a random order, the request cache
    shared      batches that fit into memory, and the measurement of forward passes
    generation  from canvases to strings, in groups of requests that may share a batch
    likelihood  from windows to log-likelihoods

`lm.py` and `server.py` prepare the requests.
"""
