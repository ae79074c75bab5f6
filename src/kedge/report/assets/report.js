// A click on a header sorts its table: numbers from large to small, text from a to z; a second click reverses.
// A table that is wider than its box has a shadow at the right edge until it is scrolled to its end.
// The contents are unfolded while there is room for them beside the page.
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

  const show = (box) => box.parentElement.classList.toggle("more", box.scrollLeft + box.clientWidth < box.scrollWidth - 1);
  const resized = new ResizeObserver((entries) => entries.forEach((entry) => show(entry.target.closest(".scroll"))));
  for (const box of document.querySelectorAll(".scroll")) {
    box.addEventListener("scroll", () => show(box), { passive: true });
    resized.observe(box);
    resized.observe(box.firstElementChild);
  }

  const contents = document.querySelector("nav details");
  const wide = matchMedia("(min-width: 75rem)"); // as in the style sheet
  const unfold = () => { contents.open = wide.matches; };
  wide.addEventListener("change", unfold);
  unfold();
  contents.addEventListener("click", ({ target }) => { // a place may be inside of something folded
    if (target.hash) document.querySelector(target.hash).closest("details")?.setAttribute("open", "");
  });

  // Open all details before printing.
  addEventListener("beforeprint", () => {
    for (const details of document.querySelectorAll("details")) details.open = true;
  });
})();
