"use strict";
// Without this script every row's details follow it, closed; with it rows open by their buttons, and closed ones have no
// details in the page: a thousand rows are sorted in half the time.
document.documentElement.classList.add("js");

addEventListener("DOMContentLoaded", () => {
  const AT_ONCE = 100; // rows of a table: a browser lays out a thousand in a third of a second
  const form = document.querySelector(".filters");
  const [count, said, compared] = ["count", "said", "compared"].map((id) => document.getElementById(id));
  const tables = [...document.querySelectorAll(".section > .table > table")];
  const entries = [...document.querySelectorAll(".entry")].map((body) => ({
    body,
    text: body.dataset.text.toLowerCase(),
    apart: Boolean(body.closest(".apart")),
    detail: body.querySelector(".detail"),
  }));
  const boxes = ["apart", "points"].map((name) => form.elements[name]).filter(Boolean);
  const fields = [form.elements.text, ...form.querySelectorAll("select")];
  const picks = [...document.querySelectorAll(".pick input")];
  const chosen = []; // ids of the rows to compare, at most two
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
    sorted = name && name !== "rank-ascending" ? `${name}-${order}` : "";
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
      const falls = head.dataset.sort === "number" && head.dataset.name !== "rank";
      const first = falls ? "descending" : "ascending";
      sortBy(head.dataset.name, was === "none" ? first : was === "ascending" ? "descending" : "ascending");
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

  // Filtering
  function filter() {
    for (const box of boxes) document.body.classList.toggle(`shows-${box.name}`, box.checked);
    const wanted = fields.slice(1).filter((select) => select.value);
    const words = form.elements.text.value.toLowerCase().split(/\s+/).filter(Boolean);
    const showsApart = !form.elements.apart || form.elements.apart.checked;
    let shown = 0;
    let hidden = 0;
    for (const { body, text, apart } of entries) {
      const fits = words.every((word) => text.includes(word)) && wanted.every(({ name, value }) => body.dataset[name] === value);
      body.hidden = !fits;
      if (fits && (showsApart || !apart)) shown += 1;
      else if (fits) hidden += 1;
    }
    for (const section of document.querySelectorAll(".section")) {
      const isEmpty = !section.querySelector(".entry:not([hidden])");
      section.querySelector(".table").hidden = isEmpty;
      section.querySelector(".none").hidden = !isEmpty;
    }
    count.textContent = `${shown} of ${entries.length} rows${hidden ? `; ${hidden} in tables that are set apart` : ""}`;
    showFirst();
  }

  // Comparing two rows
  const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
  const signed = (value) => `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(1)}`;
  const tasks = document.body.dataset.tasks.split(",");

  // Second minus first, each [mean, low, high], from their squared and added limits as of independent questions: what
  // statistics.difference does where it cannot pair.
  function difference(first, second) {
    const [a, lowA, highA] = first;
    const [b, lowB, highB] = second;
    const middle = b - a;
    if ([lowA, highA, lowB, highB].some((end) => !Number.isFinite(end))) return signed(middle);
    const low = middle - Math.hypot(b - lowB, highA - a);
    const high = middle + Math.hypot(highB - b, a - lowA);
    return `${signed(middle)} (${signed(low)} to ${signed(high)})`;
  }

  function line(cells, isHead) {
    const made = document.createElement("tr");
    cells.forEach((text, n) => {
      const cell = document.createElement(isHead || n === 0 ? "th" : "td");
      if (cell.tagName === "TH") cell.scope = isHead ? "col" : "row";
      if (n) cell.className = "num";
      cell.textContent = text;
      made.append(cell);
    });
    return made;
  }

  const limits = ({ dataset }) => [dataset.value, dataset.low, dataset.high].map((text) => (text ? Number(text) : NaN));

  function compare() {
    for (const pick of picks) {
      pick.checked = chosen.includes(pick.value);
      pick.disabled = chosen.length === 2 && !pick.checked;
    }
    compared.hidden = chosen.length < 2;
    if (compared.hidden) return;
    const [first, second] = chosen.map((id) => document.getElementById(id));
    const isSame = first.closest("table") === second.closest("table");
    const [one, other] = [first, second].map((body) => JSON.parse(body.dataset.tasks ?? "{}"));
    compared.querySelector("caption").textContent = !isSame
      ? "The two rows answer other questions, as their tables say: no difference is computed."
      : "Differences have the 95% interval of independent questions; mdlm-leaderboard compare pairs them, which is narrower.";
    const lines = [];
    const counts = Object.keys(one).filter((n) => n in other);
    for (const n of counts) {
      const both = [one[n], other[n]];
      const numbers = both.map(([value]) => value.toFixed(1));
      lines.push(line([`accuracy (%), ${n} mask${n === "1" ? "" : "s"}`, ...numbers, isSame ? difference(...both) : "–"]));
    }
    for (const head of first.closest("table").querySelectorAll("th.num[data-sort]:not(.rank, .points)")) {
      const cells = isSame ? [first, second].map((body) => body.rows[0].cells[head.cellIndex]) : [];
      const texts = cells.map((cell) => cell.textContent.trim());
      const isNew = !["most", "few"].includes(head.dataset.name) && texts.some((text) => text !== "–");
      const found = texts.includes("–") || !isSame ? "–" : difference(...cells.map(limits));
      if (isNew) lines.push(line([head.querySelector("button").textContent.trim(), ...texts, found]));
    }
    for (const [k, task] of (isSame && counts.length ? tasks : []).entries()) {
      const [a, b] = [one, other].map((numbers) => mean(counts.map((n) => numbers[n][3][k])));
      lines.push(line([task.replaceAll("_", " "), a.toFixed(1), b.toFixed(1), signed(b - a)]));
    }
    compared.querySelector("thead").replaceChildren(line(["measure", first.dataset.called, second.dataset.called, "difference"], true));
    compared.querySelector("tbody").replaceChildren(...lines);
  }

  for (const pick of picks) {
    pick.addEventListener("change", () => {
      if (pick.checked) chosen.push(pick.value);
      else chosen.splice(chosen.indexOf(pick.value), 1);
      compare();
      said.textContent = chosen.length === 1 ? "Choose a second row to compare." : "";
      remember();
      if (!compared.hidden) compared.scrollIntoView({ block: "nearest" });
    });
  }

  // What is shown is in the address: #text=…&sort=…&open=…&compare=…&apart=1, or #ROW for one open row.
  function remember() {
    const state = new URLSearchParams();
    for (const { name, value } of fields) if (value) state.set(name, value);
    for (const { name, checked } of boxes) if (checked) state.set(name, "1");
    if (sorted) state.set("sort", sorted);
    const opened = entries.filter(({ body }) => body.classList.contains("open")).map(({ body }) => body.id);
    if (opened.length) state.set("open", opened.join(","));
    if (chosen.length) state.set("compare", chosen.join(","));
    history.replaceState(null, "", state.toString() ? `#${state}` : location.pathname + location.search);
  }

  function restore() {
    const hash = location.hash.slice(1);
    if (hash && !hash.includes("=")) {
      const entry = entries.find(({ body }) => body.id === hash);
      if (!entry) return;
      if (entry.apart) form.elements.apart.checked = true;
      filter();
      open(entry, true);
      entry.body.scrollIntoView();
      return;
    }
    const state = new URLSearchParams(hash);
    const list = (name) => (state.get(name) ?? "").split(",").filter((id) => entries.some(({ body }) => body.id === id));
    for (const field of fields) field.value = state.get(field.name) ?? "";
    for (const box of boxes) box.checked = state.get(box.name) === "1";
    const [, name, order] = /^(.*)-(ascending|descending)$/.exec(state.get("sort") ?? "") ?? [];
    if (name) sortBy(name, order);
    else if (sorted) {
      sortBy("rank", "ascending");
      sorted = "";
    }
    filter();
    const opened = list("open");
    for (const entry of entries) {
      const isOpen = opened.includes(entry.body.id);
      if (entry.body.classList.contains("open") !== isOpen) open(entry, isOpen);
    }
    chosen.splice(0, 2, ...list("compare").slice(0, 2));
    compare();
  }

  // Download of what is shown
  function shownAsCsv() {
    const quoted = (text) => `"${text.replaceAll('"', '""')}"`;
    const lines = [];
    for (const table of tables.filter((one) => one.checkVisibility())) {
      const heads = [...table.querySelectorAll("th[data-sort]")].filter((head) => head.checkVisibility());
      lines.push(["table", ...heads.flatMap(({ dataset }) => (dataset.sort === "number" ? [dataset.name, `${dataset.name} 95%`] : [dataset.name]))]);
      const title = table.caption.querySelector("strong").textContent;
      for (const body of table.querySelectorAll(".entry:not([hidden])")) {
        const values = heads.flatMap((head) => {
          const cell = body.rows[0].cells[head.cellIndex];
          if (head.dataset.name === "model") return [body.dataset.called];
          const shown = cell.firstChild.textContent.trim().replace("–", "");
          const band = cell.querySelector(".band")?.textContent.trim() ?? "";
          return head.dataset.sort === "number" ? [shown, band] : [shown];
        });
        lines.push([title, ...values]);
      }
    }
    return lines.map((cells) => cells.map(quoted).join(",")).join("\n") + "\n";
  }

  document.getElementById("download").addEventListener("click", () => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([shownAsCsv()], { type: "text/csv" }));
    link.download = "leaderboard-shown.csv";
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
    said.textContent = "Downloaded what is shown.";
  });
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
