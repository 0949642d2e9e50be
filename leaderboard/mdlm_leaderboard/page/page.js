"use strict";
// Without this script every row's details stand below it, closed; with it rows open by their names.
document.documentElement.classList.add("js");

addEventListener("DOMContentLoaded", () => {
  const form = document.querySelector(".filters");
  const count = document.getElementById("count");
  const entries = [...document.querySelectorAll(".entry")].map((body) => ({
    body,
    text: body.dataset.text.toLowerCase(),
  }));

  function button(text, onClick) {
    const made = document.createElement("button");
    made.type = "button";
    made.append(...(typeof text === "string" ? [text] : text));
    made.addEventListener("click", onClick);
    return made;
  }

  // Opening
  function open(body, isOpen) {
    const details = body.querySelector("details");
    body.classList.toggle("open", isOpen);
    details.open = isOpen;
    body.querySelector(".name > button").setAttribute("aria-expanded", String(isOpen));
    if (isOpen && !body.dataset.ready) addCopyButtons(body);
  }

  function addCopyButtons(body) {
    body.dataset.ready = "true";
    for (const command of body.querySelectorAll(".command")) {
      const code = command.querySelector("code");
      const copy = button("Copy", async () => {
        try {
          await navigator.clipboard.writeText(code.textContent);
          copy.textContent = "Copied";
        } catch {
          getSelection().selectAllChildren(code);
          copy.textContent = "Selected";
        }
        setTimeout(() => (copy.textContent = "Copy"), 1500);
      });
      copy.setAttribute("aria-live", "polite");
      command.append(copy);
    }
  }

  for (const { body } of entries) {
    const cell = body.querySelector(".name");
    const toggle = button([...cell.childNodes], () => open(body, !body.classList.contains("open")));
    toggle.setAttribute("aria-expanded", "false");
    toggle.setAttribute("aria-controls", `${body.id}-detail`);
    cell.replaceChildren(toggle);
  }

  // Sorting
  function sortBy(head) {
    const table = head.closest("table");
    const isNumber = head.dataset.sort === "number";
    const was = head.getAttribute("aria-sort");
    const order = was === "none" ? (isNumber ? "descending" : "ascending") : was === "ascending" ? "descending" : "ascending";
    const sign = order === "ascending" ? 1 : -1;
    const heads = [...table.querySelectorAll("th[data-sort]")];
    const column = heads.indexOf(head);
    const keyed = [...table.tBodies].map((body) => {
      const cell = body.rows[0].cells[column];
      const text = cell.textContent.trim();
      const key = isNumber ? ("value" in cell.dataset ? Number(cell.dataset.value) : null) : text === "–" ? null : text;
      return { body, key };
    });
    const collator = new Intl.Collator("en", { numeric: true });
    // Rows without a value come last, whichever the order.
    keyed.sort((a, b) => {
      if (a.key === null || b.key === null) return (a.key === null) - (b.key === null);
      return sign * (isNumber ? a.key - b.key : collator.compare(a.key, b.key));
    });
    table.append(...keyed.map(({ body }) => body));
    for (const other of heads) other.setAttribute("aria-sort", other === head ? order : "none");
  }

  for (const head of document.querySelectorAll("th[data-sort]")) {
    head.setAttribute("aria-sort", "none");
    head.replaceChildren(button([...head.childNodes], () => sortBy(head)));
  }

  // Filtering
  function filter() {
    const wanted = Object.fromEntries(
      [...form.querySelectorAll("select")].filter((select) => select.value).map((select) => [select.name, select.value]),
    );
    const words = form.elements.text.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const { body, text } of entries) {
      const fits =
        words.every((word) => text.includes(word)) &&
        Object.entries(wanted).every(([name, value]) => body.dataset[name] === value);
      body.hidden = !fits;
      shown += fits;
    }
    for (const table of document.querySelectorAll(".table")) {
      const isEmpty = !table.querySelector(".entry:not([hidden])");
      table.hidden = isEmpty;
      table.nextElementSibling.hidden = !isEmpty;
    }
    count.textContent = `${shown} of ${entries.length} rows`;
  }

  function chooseColumns() {
    for (const box of form.querySelectorAll("[name=columns]")) {
      document.body.classList.toggle(`off-${box.value}`, !box.checked);
    }
  }

  form.addEventListener("submit", (event) => event.preventDefault());
  for (const type of ["input", "change"]) {
    form.addEventListener(type, (event) => (event.target.name === "columns" ? chooseColumns() : filter()));
  }
  chooseColumns();
  filter();

  // A link to a row opens it.
  function openTarget() {
    const body = location.hash ? document.getElementById(decodeURIComponent(location.hash.slice(1))) : null;
    if (body?.classList.contains("entry")) {
      open(body, true);
      body.scrollIntoView();
    }
  }
  addEventListener("hashchange", openTarget);
  openTarget();
});
