"use strict";
// Without this script every row's details stand below it, closed; with it rows open by their buttons,
// and closed ones have no details in the page: a thousand rows are sorted in half the time.
document.documentElement.classList.add("js");

addEventListener("DOMContentLoaded", () => {
  const form = document.querySelector(".filters");
  const count = document.getElementById("count");
  const said = document.getElementById("said");
  const entries = [...document.querySelectorAll(".entry")].map((body) => ({
    body,
    text: body.dataset.text.toLowerCase(),
    apart: Boolean(body.closest(".apart")),
  }));
  const tables = [...document.querySelectorAll(".section table")];
  const AT_ONCE = 100; // rows of a table: a browser lays out a thousand in a third of a second
  const chosen = []; // ids of the rows to compare, at most two
  let sorted = ""; // "NAME-descending"

  function button(text, label, onClick) {
    const made = document.createElement("button");
    made.type = "button";
    made.append(...(typeof text === "string" ? [text] : text));
    if (label) made.setAttribute("aria-label", label);
    made.addEventListener("click", onClick);
    return made;
  }

  async function copy(text, fallback) {
    try {
      await navigator.clipboard.writeText(text);
      return "Copied";
    } catch {
      return fallback();
    }
  }

  // Opening
  const details = new Map(entries.map(({ body }) => [body, body.querySelector(".detail")]));
  for (const detail of details.values()) {
    detail.querySelector("details").open = true;
    detail.remove();
  }

  function open(body, isOpen) {
    body.classList.toggle("open", isOpen);
    if (isOpen) body.append(details.get(body));
    else details.get(body).remove();
    body.querySelector(".toggle").setAttribute("aria-expanded", String(isOpen));
    if (isOpen && !body.dataset.ready) addCopyButtons(body);
    if (isOpen && body.classList.contains("later")) showAll(body.closest("table"));
  }

  function addCopyButtons(body) {
    body.dataset.ready = "true";
    for (const command of body.querySelectorAll(".command")) {
      const code = command.querySelector("code");
      const made = button("Copy", "", async () => {
        made.textContent = await copy(code.textContent, () => {
          getSelection().selectAllChildren(code);
          return "Selected";
        });
        setTimeout(() => (made.textContent = "Copy"), 1500);
      });
      made.setAttribute("aria-live", "polite");
      command.append(made);
    }
  }

  for (const { body } of entries) {
    const toggle = button("", `Details of ${body.dataset.called}`, () => {
      open(body, !body.classList.contains("open"));
      remember();
    });
    toggle.className = "toggle";
    toggle.setAttribute("aria-expanded", "false");
    toggle.setAttribute("aria-controls", `${body.id}-detail`);
    body.querySelector(".name").prepend(toggle);
  }

  // Sorting: all tables by the column of that name, where they have it.
  const collator = new Intl.Collator("en", { numeric: true });

  function sortBy(name, order) {
    sorted = name && name !== "rank-ascending" ? `${name}-${order}` : "";
    for (const table of tables) {
      const heads = [...table.querySelectorAll("th[data-sort]")];
      const column = heads.findIndex((head) => head.dataset.name === name);
      for (const head of heads) head.setAttribute("aria-sort", head.dataset.name === name ? order : "none");
      if (column < 0) continue;
      const isNumber = heads[column].dataset.sort === "number";
      const sign = order === "ascending" ? 1 : -1;
      const keyed = [...table.tBodies].map((body) => {
        const cell = body.rows[0].cells[column];
        const text = body.dataset.called;
        return { body, key: isNumber ? ("value" in cell.dataset ? Number(cell.dataset.value) : null) : text };
      });
      // Rows without a value come last, whichever the order.
      keyed.sort((a, b) => {
        if (a.key === null || b.key === null) return (a.key === null) - (b.key === null);
        return sign * (isNumber ? a.key - b.key : collator.compare(a.key, b.key));
      });
      table.append(...keyed.map(({ body }) => body));
    }
  }

  // Of the rows that fit, each table shows the first, until its button is pressed or they are sorted or filtered anew.
  const rests = tables.map((table) => {
    const rest = button("", "", () => {
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

  for (const head of document.querySelectorAll("th[data-sort]")) {
    head.setAttribute("aria-sort", "none");
    head.replaceChildren(
      button([...head.childNodes], "", () => {
        const isFirst = head.getAttribute("aria-sort") === "none";
        const falls = head.dataset.sort === "number" && head.dataset.name !== "rank";
        const was = isFirst ? (falls ? "ascending" : "descending") : head.getAttribute("aria-sort");
        sortBy(head.dataset.name, was === "ascending" ? "descending" : "ascending");
        showFirst();
        remember();
      }),
    );
  }

  // Filtering
  function filter() {
    const wanted = [...form.querySelectorAll("select")].filter((select) => select.value);
    const words = form.elements.text.value.toLowerCase().split(/\s+/).filter(Boolean);
    const showsApart = Boolean(form.elements.apart?.checked);
    document.body.classList.toggle("shows-apart", showsApart);
    let shown = 0;
    let hidden = 0;
    for (const { body, text, apart } of entries) {
      const fits =
        words.every((word) => text.includes(word)) && wanted.every(({ name, value }) => body.dataset[name] === value);
      body.hidden = !fits;
      shown += fits && (showsApart || !apart);
      hidden += fits && apart && !showsApart;
    }
    for (const section of document.querySelectorAll(".section")) {
      const isEmpty = !section.querySelector(".entry:not([hidden])");
      section.querySelector(".table").hidden = isEmpty;
      section.querySelector(".none").hidden = !isEmpty;
    }
    const [rows, are] = hidden === 1 ? ["row", "is"] : ["rows", "are"];
    const why = hidden ? `; ${hidden} ${rows} of ${count.dataset.hidden} ${are} hidden` : "";
    count.textContent = `${shown} of ${entries.length} rows${why}`;
    showFirst();
  }

  function chooseColumns() {
    for (const box of form.querySelectorAll("[name=columns]")) {
      document.body.classList.toggle(`on-${box.value}`, box.checked);
    }
  }

  // Comparing
  const compared = document.getElementById("compared");
  const picks = [...document.querySelectorAll(".pick input")];

  function line(cells, of) {
    const made = document.createElement("tr");
    cells.forEach((text, n) => {
      const cell = document.createElement(of === "head" || n === 0 ? "th" : "td");
      if (cell.tagName === "TH") cell.scope = of === "head" ? "col" : "row";
      if (n) cell.className = "num";
      cell.textContent = text;
      made.append(cell);
    });
    return made;
  }

  // Mean of the differences task by task, with half its 95% interval (Student's t).
  function difference(first, second) {
    const differences = second.map((value, n) => value - first[n]);
    const n = differences.length;
    const mean = differences.reduce((sum, value) => sum + value, 0) / n;
    const variance = differences.reduce((sum, value) => sum + (value - mean) ** 2, 0) / (n - 1);
    const half = Number(document.body.dataset.tQuantile) * Math.sqrt(variance / n);
    return n > 1 ? `${signed(mean)}\u00a0±${half.toFixed(1)}` : signed(mean);
  }

  // What the columns of that name show, task by task: of a row's accuracies by mask count and its table's shared counts.
  function byTask(numbers, shared) {
    const counts = Object.keys(numbers).sort((a, b) => mean(numbers[b]) - mean(numbers[a]));
    const [best, lowest] = [counts.at(0), counts.at(-1)].map((n) => numbers[n]);
    const worst = numbers[counts.findLast((n) => shared.includes(n))] ?? lowest;
    return { best, worst, drop_points: best?.map((value, k) => value - lowest[k]) };
  }

  const signed = (value) => `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(1)}`;
  const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

  function compare() {
    for (const pick of picks) {
      pick.checked = chosen.includes(pick.value);
      pick.disabled = chosen.length === 2 && !pick.checked;
    }
    compared.hidden = chosen.length < 2;
    if (compared.hidden) return;
    const [first, second] = chosen.map((id) => document.getElementById(id));
    const isSame = first.closest("table") === second.closest("table");
    const published = isSame && !("tasks" in first.dataset && "tasks" in second.dataset);
    compared.querySelector("caption").textContent = isSame
      ? published
        ? "One of the two has no accuracies task by task: no difference is computed."
        : "± is half the 95% interval of a difference, task by task. A task's accuracy (%) is its mean over the mask counts."
      : "The two rows answer other questions, as their tables say: no difference is computed.";
    compared.querySelector("thead").replaceChildren(
      line(["measure", first.dataset.called, second.dataset.called, "difference"], "head"),
    );
    const lines = [];
    const [one, other] = [first, second].map((body) => JSON.parse(body.dataset.tasks ?? "{}"));
    const [ofOne, ofOther] = [one, other].map((numbers) => byTask(numbers, first.closest("table").dataset.counts.split(",")));
    const heads = [...first.closest("table").querySelectorAll("th[data-sort].g-overview")];
    for (const head of heads) {
      const column = heads.indexOf(head) + 2;
      const cells = [first, second].map((body) => body.rows[0].cells[column]);
      const texts = cells.map((cell) => cell.textContent.trim());
      if (texts.every((text) => text === "–")) continue;
      const [a, b] = [ofOne, ofOther].map((numbers) => numbers[head.dataset.name]);
      const isShown = isSame && a && b && !texts.includes("–");
      lines.push(line([head.querySelector("button").firstChild.textContent, ...texts, isShown ? difference(a, b) : "–"]));
    }
    const counts = Object.keys(one).filter((n) => n in other);
    for (const n of counts) {
      lines.push(
        line([
          `accuracy (%), ${n} mask${n === "1" ? "" : "s"}`,
          mean(one[n]).toFixed(1),
          mean(other[n]).toFixed(1),
          isSame ? difference(one[n], other[n]) : "–",
        ]),
      );
    }
    if (counts.length) {
      document.body.dataset.taskNames.split(",").forEach((task, k) => {
        const [a, b] = [one, other].map((numbers) => mean(counts.map((n) => numbers[n][k])));
        lines.push(line([task.replaceAll("_", " "), a.toFixed(1), b.toFixed(1), isSame ? signed(b - a) : "–"]));
      });
    }
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

  // What is shown stands in the address: #text=…&sort=…&columns=…&open=…&compare=…&apart=1, or #ROW for one open row.
  const fields = [...form.querySelectorAll("select"), form.elements.text];
  const boxes = [...form.querySelectorAll("[name=columns]")];

  function remember() {
    const state = new URLSearchParams();
    for (const { name, value } of fields) if (value) state.set(name, value);
    if (sorted) state.set("sort", sorted);
    const lists = {
      columns: boxes.filter((box) => box.checked).map((box) => box.value),
      open: entries.filter(({ body }) => body.classList.contains("open")).map(({ body }) => body.id),
      compare: chosen,
    };
    for (const [name, values] of Object.entries(lists)) if (values.length) state.set(name, values.join(","));
    if (form.elements.apart?.checked) state.set("apart", "1");
    history.replaceState(null, "", state.toString() ? `#${state}` : location.pathname + location.search);
  }

  function restore() {
    const hash = location.hash.slice(1);
    if (hash && !hash.includes("=")) {
      const body = document.getElementById(hash);
      if (body?.classList.contains("entry")) {
        if (body.closest(".apart")) form.elements.apart.checked = true;
        filter();
        open(body, true);
        body.scrollIntoView();
      }
      return;
    }
    const state = new URLSearchParams(hash);
    const list = (name) => (state.get(name) ?? "").split(",").filter(Boolean);
    for (const field of fields) field.value = state.get(field.name) ?? "";
    for (const box of boxes) box.checked = list("columns").includes(box.value);
    if (form.elements.apart) form.elements.apart.checked = state.get("apart") === "1";
    form.querySelector(".more").open = boxes.some((box) => box.checked) || fields.some((one) => one.form && one.value && one.name !== "text");
    const isKnown = (id) => entries.some(({ body }) => body.id === id);
    const isOpen = new Set(list("open"));
    chosen.splice(0, 2, ...list("compare").filter(isKnown).slice(0, 2));
    const [, name, order] = /^(.*)-(ascending|descending)$/.exec(state.get("sort") ?? "") ?? [];
    if (name) sortBy(name, order);
    else if (sorted) {
      sortBy("rank", "ascending");
      sorted = "";
    }
    chooseColumns();
    filter();
    for (const { body } of entries) if (body.classList.contains("open") !== isOpen.has(body.id)) open(body, isOpen.has(body.id));
    compare();
  }

  // Download of what is shown
  function quoted(text) {
    const safe = /^[=+\-@\t\r]/.test(text) ? `'${text}` : text; // no formula for a spreadsheet
    return `"${safe.replaceAll('"', '""')}"`;
  }

  function shownAsCsv() {
    const lines = [];
    for (const table of tables.filter((one) => one.checkVisibility())) {
      const heads = [...table.querySelectorAll("th[data-sort]")];
      const columns = heads.map((_, n) => n).filter((n) => heads[n].checkVisibility());
      const names = columns.flatMap((n) => (n > 1 ? [heads[n].dataset.name, `${heads[n].dataset.name} ±`] : [heads[n].dataset.name]));
      lines.push(["table", ...names]);
      const title = table.caption.querySelector("strong").textContent;
      for (const body of table.querySelectorAll(".entry:not([hidden])")) {
        const cells = body.rows[0].cells;
        const values = columns.flatMap((n) => {
          if (n === 1) return [body.dataset.called];
          const shown = cells[n].firstChild.textContent.trim().replace("–", "");
          return n === 0 ? [shown] : [shown, cells[n].querySelector(".band")?.textContent.replace("±", "").trim() ?? ""];
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

  document.getElementById("copy-link").addEventListener("click", async () => {
    said.textContent = await copy(location.href, () => "The link stands in the address bar.");
  });

  form.addEventListener("submit", (event) => event.preventDefault());
  for (const type of ["input", "change"]) {
    form.addEventListener(type, (event) => {
      if (event.target.name === "columns") chooseColumns();
      else filter();
      remember();
    });
  }
  addEventListener("hashchange", restore);
  chooseColumns();
  filter();
  restore();
});
