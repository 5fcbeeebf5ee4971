"use strict";
// A click on a column head of a "sortable" table sorts the table by this column; a second click reverses the order.
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const key = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent.trim();
      const empty = (text) => text === "" || text === "nan" || text === "–";
      const compare = (a, b) => {
        const [one, other] = [key(a), key(b)];
        if (empty(one) || empty(other)) return empty(one) - empty(other); // empty cells are last in both orders
        const difference = one - other;
        const order = Number.isNaN(difference) ? one.localeCompare(other, undefined, { numeric: true }) : difference;
        return down ? -order : order;
      };
      table.tBodies[0].append(...[...table.tBodies[0].rows].sort(compare));
    });
  });
}
// Open all <details> elements for printing.
addEventListener("beforeprint", () => {
  for (const fold of document.querySelectorAll("details:not([open])")) {
    fold.open = true;
    fold.dataset.folded = "";
  }
});
addEventListener("afterprint", () => {
  for (const fold of document.querySelectorAll("details[data-folded]")) {
    fold.open = false;
    delete fold.dataset.folded;
  }
});
