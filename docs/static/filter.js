// A filter over the rows of long tables: every word typed must occur in the row.
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
});
