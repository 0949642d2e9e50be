"""Jobs: prepared requests become answers, and their cost is recorded and saved.

    requests    a request as any job sees it; seeds, copies of others, which are decoded a second time
    workplace   model, batch size, record and request cache, which the jobs of one model share; parts that fit a batch
    generation  canvases become strings, in groups that may share a batch
    likelihood  windows become log-likelihoods

`lm.py` and `server.py` prepare the requests; nothing here knows lm-eval's model classes.
"""
