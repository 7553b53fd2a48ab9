  // ------------------------------------------------------------ every table as JSON

  const visibleText = (cell) => {
    if (cell.querySelector(".none")) return null;
    const copied = cell.cloneNode(true);
    for (const hidden of copied.querySelectorAll("[aria-hidden=true]")) hidden.remove();
    for (const line of copied.querySelectorAll(".requirement, .stack, p")) line.prepend(" ");
    return copied.textContent.replace(/\s+/g, " ").trim();
  };

  /** The names of a table's columns: a head over several is part of the name of each. */
  const columnNames = ([above, below]) => {
    const parts = [...(below?.cells ?? [])].map(visibleText);
    const under = (cell) => parts.splice(0, cell.colSpan).map((part) => `${visibleText(cell)} ${part}`);
    return [...above.cells].flatMap((cell) => (below && cell.rowSpan < 2 ? under(cell) : [visibleText(cell)]));
  };

  const plainTable = (table) => {
    const heads = columnNames(table.tHead.rows);
    const names = heads.map((head, i) => (heads.indexOf(head) < i ? `${head} (${i + 1})` : head));
    const rows = [...table.tBodies].flatMap((body) => [...body.rows]);
    return rows.map((row) => Object.fromEntries([...row.cells].map((cell, i) => [names[i], visibleText(cell)])));
  };

  /** The clauses that the filters leave, with the outcome of each test. */
  const matrixTable = () => {
    const { cells, clauses, outcomes, runs, texts } = data();
    const shown = bodies.filter(({ body }) => !body.hidden).flatMap(({ rows }) => rows.filter(({ row }) => !row.hidden));
    return shown.map(({ row }) => {
      const here = [...row.querySelectorAll("[data-cell]")].map(({ dataset }) => cells[Number(dataset.cell)]);
      const results = here.map(([, run, verdicts]) => {
        const tests = verdicts.map(([outcome, test]) => ({ test: texts[test], outcome: outcomes[outcome][0] }));
        return { run: runs[run], outcome: named(row.cells[run + 2].firstChild).replaceAll("-", " "), tests };
      });
      const code = row.querySelector("code").textContent;
      const across = visibleText(row.querySelector(".across"));
      const [, level, requirement] = clauses[here[0]?.[0]] ?? [null, row.querySelector(".level").textContent, null];
      return { clause: code, level, requirement, across, results };
    });
  };

  const save = (name, content) => {
    const address = URL.createObjectURL(new Blob([`${JSON.stringify(content, null, 1)}\n`], { type: "application/json" }));
    make("a", { href: address, download: `${name}.json` }).click();
    setTimeout(() => URL.revokeObjectURL(address), 10000);
  };

  for (const region of document.querySelectorAll("main .scroll:not(.plot)")) {
    const section = region.closest("section").id;
    const own = [...document.querySelectorAll(`#${section} .scroll:not(.plot)`)];
    const name = own.length > 1 ? `${section}-${own.indexOf(region) + 1}` : section;
    const title = region.getAttribute("aria-label") ?? byId(region.getAttribute("aria-labelledby")).textContent;
    const press = make("button", { type: "button", class: "quiet json" }, "JSON", make("span", { class: "sr" }, ` of the table ${title}`));
    press.addEventListener("click", () => {
      const table = region.querySelector("table");
      if (!table.matches(".matrix")) save(name, plainTable(table));
      else if (tooOld) refuse();
      else unpacked(() => save(name, matrixTable()));
    });
    region.after(make("p", { class: "export" }, press));
  }
