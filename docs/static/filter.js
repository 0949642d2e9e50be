// A filter over the rows of long tables, every word of which must occur in the row; a click on a column's name sorts.
document.querySelectorAll("table").forEach((table) => {
  const rows = [...table.querySelectorAll("tbody tr")];
  if (rows.length < 30) return;
  const field = document.createElement("input");
  field.type = "search";
  field.placeholder = `Filter ${rows.length} rows`;
  field.setAttribute("aria-label", field.placeholder);
  field.addEventListener("input", () => {
    const words = field.value.toLowerCase().split(/\s+/);
    rows.forEach((row) => (row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word))));
  });
  (table.closest(".table-wrapper") || table).before(field);
  table.querySelectorAll("thead th").forEach((head, column, heads) => {
    const button = document.createElement("button");
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const sign = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", sign === 1 ? "ascending" : "descending");
      const text = (row) => row.cells[column].textContent;
      rows.sort((one, other) => sign * text(one).localeCompare(text(other), undefined, { numeric: true }));
      rows[0].parentNode.append(...rows);
    });
  });
});
// Code in tables wraps after these characters.
document.querySelectorAll("td span.pre").forEach((code) => (code.innerHTML = code.innerHTML.replace(/[_,/]/g, "$&<wbr>")));
