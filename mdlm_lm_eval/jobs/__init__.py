"""Jobs: they answer prepared requests, and record and save their cost.

    shared         requests in general, batches that are halved when memory runs out, measured forward passes
    memory         how many rows fit into a GPU
    request_cache  lm-eval's `--use_cache`, for one model and its options
    generation     from canvases to strings, in groups of requests that may share a batch
    likelihood     from windows to log-likelihoods

`lm.py` and `server.py` prepare the requests.
"""
