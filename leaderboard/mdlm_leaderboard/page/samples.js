"use strict";
// Texts are those of data sets and models: they reach the page as text nodes and attributes only, and characters that
// have no shape, or turn the direction of what follows, are named.

addEventListener("DOMContentLoaded", async () => {
  const AT_ONCE = 500; // questions in the list
  const SHADES = 8;
  const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]/g;
  const form = document.querySelector(".filters");
  const list = document.getElementById("list");
  const more = document.getElementById("more");
  const count = document.getElementById("count");
  const article = document.getElementById("question");
  const { names, tokens, questions } = await unpacked(document.getElementById("data"));
  const labels = names.length > 1 ? ["run 1", "run 2"] : [""];
  let shown = []; // questions that fit
  let limit = AT_ONCE;
  let current = null;

  async function unpacked(place) {
    const text = atob(place.textContent);
    place.remove();
    const bytes = new Uint8Array(text.length);
    for (let n = 0; n < text.length; n++) bytes[n] = text.charCodeAt(n);
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).json();
  }

  function make(name, content, kind) {
    const made = document.createElement(name);
    if (kind) made.className = kind;
    made.append(...[content ?? []].flat());
    return made;
  }

  const visible = (text) => text.replace(HIDDEN, (one) => `⟨U+${one.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`);

  // Line breaks are shown; several in a row take one line.
  const withBreaks = (text) => text.replace(/\n+/g, (breaks) => `${"↵".repeat(breaks.length)}\n`);

  function textOf(text, kind = "text") {
    const made = make("div", visible(text), kind);
    made.dir = "auto";
    return made;
  }

  // Questions
  const first = (scores) => Object.entries(scores).find(([name]) => name.startsWith("exact_match")) ?? Object.entries(scores)[0];
  const rightness = (run) => (first(run.scores) ? first(run.scores)[1] : null);
  const isRight = (run) => rightness(run) === 1;
  const isCounted = questions.every(({ runs }) => runs.every((run) => [0, 1].includes(rightness(run))));
  const said = (run) => (run.answers ?? []).map((one) => one.text).join("\n");

  for (const question of questions) {
    // The question is at the end of a prompt, after its examples.
    const prompt = (question.prompts[0] ?? "").trim();
    const end = prompt.split(/\n\s*\n/).at(-1).replace(/\s+/g, " ");
    const last = end.length > 160 ? end.slice(-160).replace(/^\S*\s/, "") : end;
    question.what = last === prompt.replace(/\s+/g, " ") ? last : `… ${last}`;
    question.right = question.runs.map(isRight);
    question.length = Math.max(0, ...question.runs.map((run) => said(run).length));
    question.text = null;
  }

  function searched(question) {
    question.text ??= [...question.prompts, question.target, ...question.choices, ...question.runs.map(said), question.id]
      .join("\n").toLowerCase();
    return question.text;
  }

  const FITS = {
    "": () => true,
    wrong: ({ right }) => right.includes(false),
    flipped: ({ right }) => right[0] !== right[1],
    lost: ({ right }) => right[0] && !right[1],
    won: ({ right }) => !right[0] && right[1],
    differs: ({ runs }) => said(runs[0]) !== said(runs[1]),
  };

  function filter() {
    const words = form.elements.text.value.toLowerCase().split(/\s+/).filter(Boolean);
    const { value: task } = form.elements.task;
    shown = questions.filter((one) =>
      FITS[form.elements.which.value](one) && (!task || one.task === task) &&
      (!words.length || words.every((word) => searched(one).includes(word))));
    if (form.elements.order.value) shown.sort((one, other) => other.length - one.length);
    const [one, other] = labels.map((_, n) => shown.filter(({ right }) => right[n]).length);
    const rights = labels.length > 1 ? `; right in run 1: ${one}, in run 2: ${other}` : `, ${one} right`;
    count.textContent = `${shown.length} of ${questions.length} questions${isCounted ? rights : ""}`;
    limit = AT_ONCE;
    draw();
    if (shown.length && !shown.includes(current)) open(shown[0]);
  }

  function mark(right) {
    return make("span", right ? "✓" : "✗", right ? "right" : "wrong");
  }

  function draw() {
    list.replaceChildren(...shown.slice(0, limit).map((question) => {
      const scores = question.right.flatMap((right, n) => [n ? ", " : "", labels[n], " ", mark(right)]);
      const task = form.elements.task.options?.length > 2 && !form.elements.task.value ? `${question.task} ` : "question ";
      const said = make("span", [`${task}${question.id}: `, ...scores], "said");
      const what = make("span", visible(question.what), "what");
      const button = make("button", [said, what]);
      button.type = "button";
      button.setAttribute("aria-label", `Question ${question.id} of ${question.task}: ${question.right.map((right, n) =>
        `${labels[n]} ${right ? "right" : "wrong"}`.trim()).join(", ")}`);
      button.addEventListener("click", () => open(question));
      const item = make("li", button);
      item.setAttribute("aria-current", String(question === current));
      question.item = item;
      return item;
    }));
    more.hidden = shown.length <= limit;
    more.textContent = `Show ${Math.min(AT_ONCE, shown.length - limit)} more`;
  }

  function open(question) {
    current?.item?.setAttribute("aria-current", "false");
    current = question;
    question.item?.setAttribute("aria-current", "true");
    question.item?.scrollIntoView({ block: "nearest" });
    const parts = [make("h2", `${question.task}, question ${question.id}`), textOf(question.what)];
    question.prompts.forEach((prompt, n) => {
      const about = question.prompts.length > 1 ? `Prompt ${n + 1}` : "Prompt";
      parts.push(make("details", [make("summary", `${about} (${prompt.length} characters)`), textOf(prompt)]));
    });
    if (question.target !== "") parts.push(make("h3", "Target"), textOf(question.choices[question.correct] ?? question.target));
    if (question.runs.some((run) => run.log_likelihoods)) parts.push(choices(question));
    const answers = question.runs.map(said);
    if (question.runs.length > 1 && question.runs.every((run) => run.answers)) {
      const same = answers[0] === answers[1];
      parts.push(make("h3", same ? "Both runs gave the same answer" : "Runs 1 (underlined) and 2 compared"));
      if (!same) parts.push(difference(visible(answers[0]), visible(answers[1]), "difference runs"));
    } else if (answers[0] && question.target !== "" && !question.right[0]) {
      parts.push(make("h3", "From the answer to the target"));
      parts.push(difference(visible(answers[0].trim()), visible(question.target.trim())));
    }
    question.runs.forEach((run, n) => parts.push(...runOf(question, run, n)));
    article.replaceChildren(...parts);
    history.replaceState(null, "", `#${questions.indexOf(question)}`);
  }

  function runOf(question, run, n) {
    const scores = Object.entries(run.scores).map(([name, value]) => `${name.replace(/,none$/, "")} ${+value.toFixed(4)}`);
    const head = make("h3", [mark(isRight(run)), ` ${[labels[n], names[n]].filter(Boolean).join(", ")}: `, make("span", scores.join(", "), "quiet")]);
    const parts = [head];
    (run.answers ?? []).forEach((answer, repetition) => {
      if (run.answers.length > 1) parts.push(make("p", `Repetition ${repetition + 1}`, "quiet"));
      parts.push(textOf(answer.text));
      if (answer.trace) {
        try {
          parts.push(replayOf(answer.trace, tokens[n], answer.text, isRight(run) ? answer.text : question.target, question.prompts[0] ?? ""));
        } catch {
          parts.push(make("p", "The trace of this answer cannot be read.", "quiet"));
        }
      } else {
        parts.push(make("p", "To replay answers, run with trace=true.", "quiet"));
      }
    });
    return parts;
  }

  function choices(question) {
    const heads = make("tr", ["choice", ...question.runs.map((_, n) => `${labels[n]} log-likelihood`.trim())].map((one) => {
      const head = make("th", one);
      head.scope = "col";
      return head;
    }));
    const best = question.runs.map((run) => Math.max(...(run.log_likelihoods ?? [])));
    const rows = question.choices.map((choice, k) => {
      const cells = question.runs.map((run, n) => {
        const value = run.log_likelihoods?.[k];
        const shownAs = value === undefined ? "–" : value.toFixed(3);
        return make("td", value === best[n] ? make("strong", `${shownAs} ◂`) : shownAs, "num");
      });
      const isCorrect = k === question.correct;
      const said = make("td", [textOf(choice, "choice"), ...(isCorrect ? [" ", mark(true)] : [])]);
      return make("tr", [said, ...cells]);
    });
    return make("div", make("table", [make("thead", heads), make("tbody", rows)]), "scroll");
  }

  // Two texts as words, or as characters where there are no blanks.
  function unitsOf(...texts) {
    const unit = /\s/.test(texts.join("")) ? /\s+|[\p{L}\p{N}]+|[^\s]/gu : /./gu;
    return texts.map((text) => text.match(unit) ?? []);
  }

  // The difference between two answers.
  function difference(from, to, kind = "difference") {
    const [a, b] = unitsOf(from, to);
    const isOfSlots = a.length === b.length && !/\s/.test(from + to); // one character each: a line below the other
    const line = (own, other, name) => own.map((one, n) => [one === other[n] ? "" : name, one]);
    const parts = isOfSlots ? [...line(a, b, "del"), ["", "\n"], ...line(b, a, "ins")] : changes(a, b);
    const place = textOf("", `text ${kind}`);
    place.append(...parts.map(([name, text]) => (name ? make(name, text) : text)));
    return place;
  }

  // What both begin and end with, and a longest common subsequence between.
  function changes(a, b) {
    let [start, end] = [0, 0];
    while (start < Math.min(a.length, b.length) && a[start] === b[start]) start += 1;
    while (end < Math.min(a.length, b.length) - start && a.at(-1 - end) === b.at(-1 - end)) end += 1;
    const [x, y] = [a.slice(start, a.length - end), b.slice(start, b.length - end)];
    const parts = [["", a.slice(0, start).join("")]];
    if (x.length * y.length > 4e6) {
      parts.push(["del", x.join("")], ["ins", y.join("")]);
    } else {
      const width = y.length + 1;
      const longest = new Uint16Array((x.length + 1) * width);
      for (let i = x.length - 1; i >= 0; i--) {
        for (let j = y.length - 1; j >= 0; j--) {
          longest[i * width + j] = x[i] === y[j]
            ? longest[(i + 1) * width + j + 1] + 1
            : Math.max(longest[(i + 1) * width + j], longest[i * width + j + 1]);
        }
      }
      let [i, j] = [0, 0];
      while (i < x.length || j < y.length) {
        if (i < x.length && j < y.length && x[i] === y[j]) parts.push(["", x[(j++, i++)]]);
        else if (j >= y.length || (i < x.length && longest[(i + 1) * width + j] >= longest[i * width + j + 1])) parts.push(["del", x[i++]]);
        else parts.push(["ins", y[j++]]);
      }
    }
    parts.push(["", end ? a.slice(-end).join("") : ""]);
    return parts;
  }

  // Replays
  const numbers = (column) => (column ? column.split(" ") : []);

  // The canvas after every pass: cells { id, step, sure, writes }, of which equal ones are shared from pass to pass.
  function canvasesOf(trace) {
    const begin = numbers(trace.canvas).flatMap((run) => {
      const [id, n] = run.split("*");
      return Array.from({ length: Number(n ?? 1) }, () => ({ id, step: 0, sure: null, writes: 0 }));
    });
    const mask = maskOf(trace);
    const [steps, places, ids, sure] = ["steps", "places", "tokens", "confidence"].map((name) => numbers(trace.events[name]));
    const passes = new Map();
    steps.forEach((step, n) => {
      if (!passes.has(step)) passes.set(step, []);
      passes.get(step).push({ place: Number(places[n]), id: ids[n], sure: Number(sure[n]) });
    });
    const found = [{ step: 0, cells: begin, back: new Set(), changed: new Set() }];
    for (const [step, events] of passes) {
      const cells = [...found.at(-1).cells];
      const [back, changed] = [new Set(), new Set()];
      // From the right, so that places hold; an insertion in front of a place comes after what happens to it.
      events.sort((one, other) => other.place - one.place || one.id.startsWith("+") - other.id.startsWith("+"));
      for (const { place, id, sure: confidence } of events) {
        if (id === "-") {
          cells.splice(place, 1);
        } else if (id.startsWith("+")) {
          cells.splice(place, 0, { id: id.slice(1), step: Number(step), sure: confidence, writes: 0 });
        } else {
          const was = cells[place];
          const made = { id, step: Number(step), sure: confidence, writes: was.writes + (id !== mask) };
          if (was.id !== mask) (id === mask ? back : changed).add(made);
          cells[place] = made;
        }
      }
      found.push({ step: Number(step), cells, back, changed });
    }
    return found;
  }

  // The last paragraph before the first slot: the record of a canvas begins with this slot.
  function questionIn(prompt, mask) {
    const at = mask ? prompt.indexOf(mask) : -1;
    return (at < 0 ? prompt : prompt.slice(0, at)).split(/\n\s*\n/).at(-1).slice(-300);
  }

  // Wrong cells of the answer -> what the target has there; empty unless both have as many words.
  function wrongOf(cells, spelled, text, target) {
    const [said, right] = unitsOf(text.trim(), target.trim()).map((units) => units.filter((one) => one.trim()));
    const found = new Map();
    if (said.length !== right.length) return found;
    const expected = said.flatMap((one, k) => [...one].map(() => (one === right[k] ? null : right[k]))); // per character
    const written = cells.map((cell) => [...(spelled[cell.id] ?? "").replace(/\s+/g, "")]);
    if (!written.flat().join("").startsWith(said.join(""))) return found; // the record has other characters
    let at = 0;
    written.forEach((characters, n) => {
      const missed = expected.slice(at, (at += characters.length)).find((one) => one);
      if (missed) found.set(cells[n], missed);
    });
    return found;
  }

  function replayOf(trace, spelled, text, target, prompt) {
    const [canvases, mask] = [canvasesOf(trace), maskOf(trace)];
    const last = Math.max(1, canvases.at(-1).step);
    const slots = canvases[0].cells.flatMap((cell, n) => (cell.id === mask ? [n] : []));
    const starts = new Set(); // the first places of blocks
    numbers(trace.blocks).map(Number).reduce((begin, length) => (starts.add(slots[begin]), begin + length), 0);
    starts.delete(slots[0]);
    const kept = numbers(trace.steps).length;
    const cut = kept < slots.length ? slots[kept] : Infinity;
    const before = questionIn(prompt, spelled[mask]);
    const wrong = wrongOf(slots.slice(0, kept).map((n) => canvases.at(-1).cells[n]), spelled, text, target);

    const slider = make("input");
    Object.assign(slider, { type: "range", min: 0, max: canvases.length - 1, value: canvases.length - 1, step: 1 });
    slider.setAttribute("aria-label", "Pass");
    const where = make("output");
    const place = make("div", [], "canvas");
    place.tabIndex = 0;
    place.dir = "auto";
    place.setAttribute("role", "group");
    place.setAttribute("aria-label", "Canvas: arrow keys go from token to token");
    const about = make("p", [], "about");
    about.setAttribute("aria-live", "polite");
    let here = -1;

    const shade = (step) => `s${Math.min(SHADES - 1, Math.floor(((step - 1) * SHADES) / last))}`;

    function tokenOf(cell, n, { step, back, changed }) {
      const isMask = cell.id === mask;
      const text = isMask ? "▒ " : withBreaks(visible(spelled[cell.id] ?? `⟨${cell.id}⟩`)) || "⟨⟩";
      const made = make("span", text, "token");
      made.dataset.n = n;
      if (isMask) made.classList.add("mask");
      else if (cell.step > 0) made.classList.add(shade(cell.step));
      if (step > 0 && cell.step === step) made.classList.add("now");
      if (cell.writes > 1 && !isMask) made.classList.add("changed");
      if (back.has(cell)) made.classList.add("back");
      if (changed.has(cell)) made.classList.add("changed");
      if (starts.has(n)) made.classList.add("block");
      if (n >= cut && !isMask) made.classList.add("after");
      if (wrong.has(cell)) made.classList.add("wrong-one");
      made.title = described(cell, n);
      return made;
    }

    function described(cell, n) {
      const isMask = cell.id === mask;
      const facts = [`token ${n + 1}`, isMask ? "mask" : `“${visible(spelled[cell.id] ?? cell.id)}”`];
      if (cell.step > 0) facts.push(isMask ? `taken back in pass ${cell.step}` : `pass ${cell.step}`);
      if (cell.step > 0 && !isMask) facts.push(cell.sure > 0 ? `confidence ${cell.sure.toFixed(3)}` : "not proposed by the model");
      if (cell.writes > 1) facts.push(`written ${cell.writes} times`);
      if (n >= cut) facts.push("after the end of the answer");
      if (wrong.has(cell)) facts.push(`wrong: the target has “${visible(wrong.get(cell))}”`);
      return facts.join(", ");
    }

    function show() {
      const canvas = canvases[Number(slider.value)];
      where.textContent = `pass ${canvas.step} of ${last}`;
      slider.setAttribute("aria-valuetext", where.textContent);
      const parts = canvas.cells.map((cell, n) => tokenOf(cell, n, canvas));
      const ending = { ended_by_eos: "◼ end of text", ended_by_stop: "◼ stop string" }[trace.ending];
      const end = parts.findIndex((_, n) => n >= cut);
      if (end >= 0) parts.splice(end, 0, make("span", ending ?? "◼ end of the answer", "ending"));
      parts.unshift(make("span", `… ${withBreaks(visible(before))}`, "quiet"));
      place.replaceChildren(...parts);
    }

    function point(n) {
      const found = [...place.querySelectorAll(".token")];
      here = Math.max(0, Math.min(found.length - 1, n));
      place.querySelector(".here")?.classList.remove("here");
      found[here]?.classList.add("here");
      found[here]?.scrollIntoView({ block: "nearest" });
      about.textContent = found[here]?.title ?? "";
    }

    slider.addEventListener("input", () => show());
    place.addEventListener("pointerover", ({ target }) => target.dataset.n && (about.textContent = target.title));
    place.addEventListener("click", ({ target }) => target.dataset.n && point(Number(target.dataset.n)));
    place.addEventListener("keydown", (event) => {
      const by = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 10, ArrowUp: -10 }[event.key];
      if (by === undefined) return;
      event.preventDefault();
      point(here + by);
    });
    show();
    const legend = make("div", [
      make("span", ["filled in the ", make("span", "first", "token s0"), " … ", make("span", "last", `token s${SHADES - 1}`), " pass"]),
      make("span", [make("span", "this pass", "token now")]),
      make("span", [make("span", "changed", "token changed")]),
      make("span", [make("span", "masked again", "token back")]),
      make("span", [make("span", "block", "token block")]),
      ...(wrong.size ? [make("span", [make("span", "wrong", "token wrong-one")])] : []),
    ], "legend");
    const goal = wrong.size ? [make("p", `Target: ${visible(target.trim())}`, "about")] : [];
    return make("div", [make("div", [make("span", "Pass"), slider, where], "replay"), ...goal, about, place, legend], "traced");
  }

  // The recorded part of a canvas begins with its first slot.
  const maskOf = (trace) => numbers(trace.canvas)[0].split("*")[0];

  // Keys, address, tasks
  function step(by) {
    const at = shown.indexOf(current);
    const next = shown[Math.max(0, Math.min(shown.length - 1, at + by))];
    if (next) open(next);
  }

  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, select")) return;
    if (event.key === "j") step(1);
    else if (event.key === "k") step(-1);
    else if (event.key === "/") (event.preventDefault(), form.elements.text.focus());
  });
  more.addEventListener("click", () => ((limit += AT_ONCE), draw()));
  form.addEventListener("submit", (event) => event.preventDefault());
  for (const type of ["input", "change"]) form.addEventListener(type, filter);
  const tasks = [...new Set(questions.map((one) => one.task))];
  form.elements.task.append(...tasks.map((task) => new Option(task, task)));
  document.getElementById("tasks").hidden = tasks.length < 2;
  for (const option of form.elements.which.options) {
    option.textContent += ` (${questions.filter(FITS[option.value]).length})`;
  }
  const asked = location.hash ? questions[Number(location.hash.slice(1))] : questions.find(FITS[names.length > 1 ? "flipped" : "wrong"]);
  filter();
  if (asked) open(asked);
  document.body.dataset.ready = "true";
});
