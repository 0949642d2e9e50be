"""Reverse diffusion: canvases go in, and masks become tokens, pass by pass.

Read `reference` first, which decodes one canvas from top to bottom. Then read `sampler`, and one file of `samplers/`.

    reference         the loop over one canvas, without cache, batch or device
    sampler           the interface of a way of decoding; `samplers/` holds one file for each
    way               options with their sampler, attention and cache, which says the columns that a pass runs
    row_decoders/     decoders that do not use the engine
    engine            canvases in, completions out: a pass over a window of each row, and then each row moves on
    rows              a row and its stages; the lanes in which rows run together
    batch             the facts that hold for all rows; the blocks of canvases, and their planned steps
    windows           the columns that a pass runs, what they see, and the places at which it asks the model
    passes            one pass: the model is asked, tokens are proposed, the sampler chooses
    readers           what else takes part in a pass: labels, next tokens, distributions of other passes, thinking
    canvas            prompt, masks and steps of a request, and its completion
    candidates        the token proposed for each mask
    rules, selection  the order of the masks; how many are filled, and which
    trace             the changes of a canvas as events
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
