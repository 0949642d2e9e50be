"use strict";
// Without this script every row's details follow it, closed; with it rows open by their buttons, and closed ones have no
// details in the page: a thousand rows are sorted in half the time.
document.documentElement.classList.add("js");

addEventListener("DOMContentLoaded", () => {
  const AT_ONCE = 100; // rows of a table: a browser lays out a thousand in a third of a second
  const form = document.querySelector(".filters");
  const terms = document.querySelector("details.terms");
  if (terms) terms.open = innerWidth > 1100; // beside the figure, where it takes no room
  const [count, said] = ["count", "said"].map((id) => document.getElementById(id));
  const tables = [...document.querySelectorAll(".section .table > table")];
  const entries = [...document.querySelectorAll(".entry")].map((body) => ({
    body,
    text: body.dataset.text.toLowerCase(),
    apart: body.closest("details.apart"), // null of a table that is not folded
    detail: body.querySelector(".detail"),
  }));
  const fields = [form.elements.text, ...form.querySelectorAll("select")];
  const picks = [...document.querySelectorAll(".pick input")];
  let baselines = []; // ids of the rows that others are held against, at most one in a table
  let sorted = ""; // "NAME-descending"

  function button(content, onClick, label) {
    const made = document.createElement("button");
    made.type = "button";
    made.append(...content);
    if (label) made.setAttribute("aria-label", label);
    made.addEventListener("click", onClick);
    return made;
  }

  // Opening
  function open(entry, isOpen) {
    const { body, detail } = entry;
    body.classList.toggle("open", isOpen);
    if (isOpen && entry.apart) entry.apart.open = true;
    if (isOpen) body.append(detail);
    else detail.remove();
    body.querySelector(".toggle").setAttribute("aria-expanded", String(isOpen));
    if (isOpen && body.classList.contains("later")) showAll(body.closest("table"));
  }

  for (const entry of entries) {
    const { body, detail } = entry;
    detail.querySelector("details").open = true;
    for (const command of detail.querySelectorAll(".command")) {
      const code = command.querySelector("code");
      const made = button(["Copy"], () => copy(code.textContent, made, "Copied", () => getSelection().selectAllChildren(code)));
      made.setAttribute("aria-live", "polite");
      command.append(made);
    }
    detail.remove();
    const toggle = button([], () => (open(entry, !body.classList.contains("open")), remember()), `Details of ${body.dataset.called}`);
    toggle.className = "toggle";
    toggle.setAttribute("aria-expanded", "false");
    toggle.setAttribute("aria-controls", `${body.id}-detail`);
    body.querySelector(".name").prepend(toggle);
  }

  async function copy(text, place, word, otherwise) {
    const before = place.textContent;
    try {
      await navigator.clipboard.writeText(text);
      place.textContent = word;
    } catch {
      otherwise();
      place.textContent = "Selected";
    }
    setTimeout(() => (place.textContent = before), 1500);
  }

  // Sorting: all tables by the column of that name, where they have it. Rows without a value come last.
  const collator = new Intl.Collator("en", { numeric: true });

  function sortBy(name, order) {
    sorted = `${name}-${order}` === "rank-ascending" ? "" : `${name}-${order}`;
    for (const table of tables) {
      const heads = [...table.querySelectorAll("th[data-sort]")];
      const head = heads.find((one) => one.dataset.name === name);
      for (const one of heads) one.setAttribute("aria-sort", one === head ? order : "none");
      if (!head) continue;
      const isNumber = head.dataset.sort === "number";
      const sign = order === "ascending" ? 1 : -1;
      const keyed = [...table.tBodies].map((body) => {
        const cell = body.rows[0].cells[head.cellIndex];
        const text = name === "model" ? body.dataset.called : cell.textContent;
        return { body, key: isNumber ? ("value" in cell.dataset ? Number(cell.dataset.value) : null) : text };
      });
      keyed.sort((a, b) => {
        if (a.key === null || b.key === null) return (a.key === null) - (b.key === null);
        return sign * (isNumber ? a.key - b.key : collator.compare(a.key, b.key));
      });
      table.append(...keyed.map(({ body }) => body));
    }
  }

  for (const head of document.querySelectorAll("th[data-sort]")) {
    head.setAttribute("aria-sort", "none");
    const press = () => {
      const was = head.getAttribute("aria-sort");
      const rises = was === "none" ? head.dataset.sort === "text" || head.dataset.name === "rank" : was === "descending";
      sortBy(head.dataset.name, rises ? "ascending" : "descending");
      showFirst();
      remember();
    };
    head.replaceChildren(button([...head.childNodes], press));
  }

  // Each table shows the first of the rows that fit, until its button is pressed or rows are sorted or filtered anew.
  const rests = tables.map((table) => {
    const rest = button([], () => {
      const next = table.querySelector(".entry:not([hidden]).later .toggle");
      showAll(table);
      next.focus();
    });
    rest.className = "rest";
    table.parentElement.after(rest);
    return rest;
  });

  function showFirst() {
    tables.forEach((table, k) => {
      const fitting = table.querySelectorAll(".entry:not([hidden])");
      fitting.forEach((body, n) => body.classList.toggle("later", n >= AT_ONCE));
      rests[k].hidden = fitting.length <= AT_ONCE;
      rests[k].textContent = `Show all ${fitting.length} rows`;
    });
  }

  function showAll(table) {
    for (const body of table.tBodies) body.classList.remove("later");
    rests[tables.indexOf(table)].hidden = true;
  }

  // A table with columns out of sight says so.
  const resized = new ResizeObserver((found) => found.forEach(({ target: { offsetWidth, parentElement } }) =>
    parentElement.classList.toggle("cut", offsetWidth > parentElement.clientWidth)));
  document.querySelectorAll(".table > table").forEach((table) => resized.observe(table));

  // Filtering
  function filter() {
    const wanted = fields.slice(1).filter((select) => select.value);
    const words = form.elements.text.value.toLowerCase().split(/\s+/).filter(Boolean);
    const isFiltered = words.length + wanted.length > 0;
    let shown = 0;
    for (const { body, text, apart } of entries) {
      const fits = words.every((word) => text.includes(word)) && wanted.every(({ name, value }) => body.dataset[name] === value);
      body.hidden = !fits;
      shown += fits;
      if (isFiltered && fits && apart) apart.open = true;
    }
    for (const section of document.querySelectorAll(".section")) {
      const isEmpty = !section.querySelector(".entry:not([hidden])");
      section.querySelector(".table").hidden = isEmpty;
      section.querySelector(".none").hidden = !isEmpty;
    }
    count.textContent = isFiltered ? `${shown} of ${entries.length} rows` : "";
    showFirst();
  }

  // Baselines: beside every other score of the table its difference, which is in the page already.
  function hold(ids) {
    baselines = ids.filter((id) => picks.some((pick) => pick.value === id));
    for (const pick of picks) {
      pick.checked = baselines.includes(pick.value);
      pick.closest(".entry").classList.toggle("baseline", pick.checked);
    }
    for (const cell of document.querySelectorAll("[data-versus]:has(.band)")) {
      const band = cell.querySelector(".band");
      const of = cell.dataset.versus ? JSON.parse(cell.dataset.versus) : {};
      const found = baselines.map((id) => of[id]).find(Boolean);
      band.dataset.own ??= band.textContent;
      band.textContent = found ? ` ${found}` : band.dataset.own;
      band.classList.toggle("difference", Boolean(found));
    }
  }

  function choose(id) {
    const table = document.getElementById(id).closest("table");
    const others = baselines.filter((one) => one !== id && document.getElementById(one).closest("table") !== table);
    hold(baselines.includes(id) ? others : [...others, id]);
    remember();
  }

  for (const pick of picks) pick.addEventListener("change", () => choose(pick.value));
  for (const { body } of entries) {
    body.rows[0].addEventListener("click", ({ target }) => {
      if (!target.closest("a, button, label") && !String(getSelection())) choose(body.id);
    });
  }

  // What is shown is in the address: #text=…&sort=…&open=…&baseline=…, or #ROW for one open row.
  function remember() {
    const state = new URLSearchParams();
    for (const { name, value } of fields) if (value) state.set(name, value);
    if (form.elements.points?.checked) state.set("points", "1");
    if (sorted) state.set("sort", sorted);
    const opened = entries.filter(({ body }) => body.classList.contains("open")).map(({ body }) => body.id);
    if (opened.length) state.set("open", opened.join(","));
    if (baselines.length) state.set("baseline", baselines.join(","));
    history.replaceState(null, "", state.toString() ? `#${state}` : location.pathname + location.search);
  }

  function restore() {
    const hash = location.hash.slice(1);
    if (hash && !hash.includes("=")) {
      const entry = entries.find(({ body }) => body.id === hash);
      if (!entry) return;
      filter();
      open(entry, true);
      entry.body.scrollIntoView();
      return;
    }
    const state = new URLSearchParams(hash);
    const list = (name) => (state.get(name) ?? "").split(",").filter((id) => entries.some(({ body }) => body.id === id));
    for (const field of fields) field.value = state.get(field.name) ?? "";
    if (form.elements.points) form.elements.points.checked = state.get("points") === "1";
    const [, name, order] = /^(.*)-(ascending|descending)$/.exec(state.get("sort") ?? "") ?? [];
    if (name) sortBy(name, order);
    else if (sorted) sortBy("rank", "ascending");
    filter();
    const opened = list("open");
    for (const entry of entries) {
      const isOpen = opened.includes(entry.body.id);
      if (entry.body.classList.contains("open") !== isOpen) open(entry, isOpen);
    }
    hold(state.has("baseline") ? list("baseline") : document.body.dataset.baselines.split(","));
  }

  document.getElementById("copy-link").addEventListener("click", () =>
    copy(location.href, said, "Copied", () => (said.textContent = "The link is in the address bar.")));
  document.getElementById("clear").addEventListener("click", () => {
    history.replaceState(null, "", location.pathname + location.search);
    restore();
  });
  form.addEventListener("submit", (event) => event.preventDefault());
  for (const type of ["input", "change"]) form.addEventListener(type, () => (filter(), remember()));
  addEventListener("hashchange", restore);
  restore();
});
