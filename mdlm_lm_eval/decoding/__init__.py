"""Reverse diffusion: canvases go in, and masks become tokens, pass by pass.

Read `reference` first, which decodes one canvas from top to bottom. Then read `sampler`, and one file of `samplers/`.

    reference         the loop over one canvas, without cache, batch or device
    sampler           the interface of a way of decoding; `samplers/` holds one file for each
    caches            the columns that a pass runs, and the keys and values that passes keep
    row_decoders/     decoders that do not use the engine
    from_python       prompts in, answers out
    engine            the loop over lanes: canvases enter, a pass is planned and run, the host looks at the outcome
    passes            one pass on the device, stage by stage
    windows, places   the columns that a pass runs, and those whose logits are computed
    run               the constants of a run over canvases
    rows, lanes       the rows on the device, and the host's copy of their state
    program, blocks   the passes that a row can take; the blocks of a canvas and their planned steps
    canvas            prompt, masks and steps of a request, and its completion
    schedules         how many masks a pass fills
    candidates        the token proposed for each mask
    rules, selection  the order of the masks, and the choice of those that are filled
    hindsight, history, next_token    numbers that only some samplers and models need
    drafts            several views of a row in one pass
    thinking, trace   the end of thinking; the changes of a canvas as events
    checks            whether a model can serve decoding options
    memory            how many rows fit
    guests            functions of others that generate

    row     a canvas that is being decoded: its tensors on the device
    lane    a place for a row in the batch
    slot    a mask of a canvas that is decoded
    window  the columns of a row that a pass runs
    canvas  the whole text of a request, with its masks
    look    the copy of a pass's outcome that the host reads, on a GPU a pass later
"""
