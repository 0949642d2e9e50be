"""Reverse diffusion: canvases go in, and masks become tokens, pass by pass.

Read `reference` first: one canvas, from top to bottom. Then `sampler`, and one file of `samplers/`.

    reference         the loop over one canvas, without cache, batch or device
    sampler           the interface of a way of decoding; `samplers/` holds one file each
    caches            which columns a pass runs, and what is remembered between passes
    row_decoders/     decoding that is no step over a fixed canvas
    from_python       prompts in, answers out
    engine            the loop over lanes: canvases enter, a pass is planned and run, the host looks at it
    passes            one pass on the device, stage by stage; windows, places: where it runs and asks
    run               all that stays the same while canvases are decoded
    rows, lanes       the rows on the device, and what the host knows of them
    program, blocks   the passes that a row can take; the blocks of a canvas and their planned steps
    canvas            prompt, masks and steps of a request, and its completion
    schedules         how many masks a pass fills
    candidates        the token proposed for each mask
    rules, selection  the order of the masks, and which of them are filled
    hindsight, history, next_token    what some samplers and models need beside proposals
    drafts            several views of a row in one pass
    thinking, trace   the end of thinking; the changes of a canvas as events
    checks            which options a model can serve
    memory            how many rows fit

    row     a canvas that is being decoded: its tensors on the device
    lane    a place for a row in the batch
    slot    a mask of a canvas that is decoded
    window  the columns of a row that a pass runs
    canvas  the whole text of a request, with its masks
    look    the copy of a pass's outcome that the host reads, on a GPU a pass later
"""
