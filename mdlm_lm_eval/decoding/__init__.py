"""Reverse diffusion: canvases go in, and masks become tokens, pass by pass.

Read `reference` first, which decodes one canvas from top to bottom. Then read `sampler`, and one file of `samplers/`.

    reference         the loop over one canvas, without cache, batch or device
    sampler           the interface of a way of decoding; `samplers/` holds one file for each
    caches            the columns that a pass runs, and the keys and values that passes keep
    row_decoders/     decoders that do not use the engine
    from_python       prompts in, answers out
    decode            canvases in, completions out
    engine            the loop: a pass over a window of each row, and then each row moves on
    rows              a row and its stages
    lanes             rows that run together
    batch             the facts that hold for all rows; the blocks of canvases, and their planned steps
    windows           the columns that a pass runs, and what they see
    passes            one pass: the model is asked, tokens are proposed, the sampler chooses
    readers           what else takes part in a pass: the sampler's state, labels, next tokens, distributions of other
                      passes, hindsight; also `thinking`
    canvas            prompt, masks and steps of a request, and its completion
    schedules         how many masks a pass fills
    candidates        the token proposed for each mask
    rules, selection  the order of the masks, and the choice of those that are filled
    trace             the changes of a canvas as events
    checks            whether a model can serve decoding options
    memory            how many rows fit
    guests            functions of others that generate

    row     a canvas that is being decoded
    lane    what a row takes among those that run together; a cache keeps its keys and values there
    slot    a mask of a canvas that is decoded
    column  a position on a canvas
    window  the columns that a pass runs of each row
    place   a column of a row in a window
    plan    the steps of a block; layout: the blocks of a canvas
    canvas  the whole text of a request, with its masks
    wide    a pass over whole canvases or text, which runs apart from passes over blocks
"""
