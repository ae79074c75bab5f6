// A click on a header sorts its table: numbers from large to small, text from a to z; a second click reverses.
"use strict";
(() => {
  const value = (row, column) => {
    const cell = row.cells[column];
    return cell.dataset.value === undefined ? cell.textContent.trim() : cell.dataset.value;
  };

  const sort = (header) => {
    const table = header.closest("table");
    const body = table.tBodies[0];
    const column = header.cellIndex;
    const rows = [...body.rows];
    const numeric = header.dataset.kind === "number";
    const before = header.getAttribute("aria-sort");
    const descending = before === null ? numeric : before === "ascending";
    const missing = (text) => text === "";
    rows.sort((a, b) => {
      const [x, y] = [value(a, column), value(b, column)];
      if (missing(x) || missing(y)) return missing(x) - missing(y); // missing values stay last in both directions
      const order = numeric ? Number(x) - Number(y) : x.localeCompare(y, undefined, { numeric: true });
      return descending ? -order : order;
    });
    for (const other of header.parentElement.cells) other.removeAttribute("aria-sort");
    header.setAttribute("aria-sort", descending ? "descending" : "ascending");
    body.append(...rows);
  };

  for (const button of document.querySelectorAll("th > button")) {
    button.addEventListener("click", () => sort(button.parentElement));
  }
  // Open all details before printing.
  addEventListener("beforeprint", () => {
    for (const details of document.querySelectorAll("details")) details.open = true;
  });
})();
