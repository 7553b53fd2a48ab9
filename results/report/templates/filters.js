  // ------------------------------------------------------------ filters

  /** The outcome that an element's class names, with hyphens for spaces. */
  const named = (element) => element.className.match(/\b[ow]-(\S+)/)[1];

  const bodies = [...document.querySelectorAll(".matrix tbody")].map((body) => ({
    body,
    rows: [...body.querySelectorAll(".clause")].map((row) => ({
      row,
      text: row.cells[0].textContent.toLowerCase(),
      across: row.dataset.across.split(" "),
      outcomes: [...row.cells].slice(2).map((cell) => [...cell.querySelectorAll(".n")].map(named)),
    })),
  }));
  const form = byId("filters");
  const fields = ["search", "family", "level", "across", "outcome", "run", "lonely"].map(byId);
  const [search, family, level, across, outcome, run, lonely] = fields;
  const total = bodies.reduce((sum, { rows }) => sum + rows.length, 0);

  const matrix = document.querySelector(".matrix");
  const groups = matrix ? [...matrix.tHead.rows[0].cells].slice(2).map((head) => ({ head, span: head.colSpan })) : [];
  let columns = "";

  /** Shows the columns of the chosen runs alone. */
  const showRuns = (places) => {
    if (columns === run.value) return;
    columns = run.value;
    const shown = (place) => columns === "" || places.includes(place);
    for (const row of matrix.querySelectorAll("tbody tr")) {
      [...row.cells].slice(2).forEach((cell, place) => (cell.hidden = !shown(place)));
    }
    const heads = [...matrix.tHead.rows[1].cells];
    heads.forEach((head, place) => (head.hidden = !shown(place)));
    for (const { head, span } of groups) {
      const left = heads.splice(0, span).filter((each) => !each.hidden).length;
      head.hidden = left === 0;
      head.colSpan = left || span;
    }
  };

  /** Adds sources and names of tests to the texts that are searched. */
  const extend = () => {
    const { cells, clauses, texts } = data();
    const entries = bodies.flatMap(({ rows }) => rows);
    const names = entries.map(() => new Set());
    for (const [clause, , verdicts] of cells) for (const [, test] of verdicts) names[clause].add(texts[test]);
    entries.forEach((entry, clause) => {
      const source = clauses[clause][3].map(([text]) => text);
      entry.text = [entry.text, ...source, ...names[clause]].join(" ").toLowerCase();
    });
    form.removeAttribute("aria-busy");
    filter();
  };

  let extended = tooOld;
  const extendOnce = () => {
    if (extended) return;
    extended = true;
    form.setAttribute("aria-busy", "true");
    unpacked(extend);
  };

  /** The values that an option stands for: its own, or several. */
  const values = (select) => (select.selectedOptions[0].dataset.values ?? select.value).split(" ");

  const filter = () => {
    const searched = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    if (searched.length) extendOnce();
    const outcomesWanted = values(outcome);
    const runsWanted = values(run).map(Number);
    showRuns(runsWanted);
    const here = (outcomes) => (run.value === "" ? outcomes : runsWanted.map((place) => outcomes[place]));
    const wanted = ({ row, text, across: words, outcomes }) =>
      searched.every((word) => text.includes(word)) &&
      (level.value === "" || row.dataset.level === level.value) &&
      (across.value === "" || words.includes(across.value)) &&
      (!lonely.checked || row.dataset.lonely === "1") &&
      (outcome.value === "" || here(outcomes).some((found) => outcomesWanted.some((each) => found.includes(each))));
    let shown = 0;
    for (const { body, rows } of bodies) {
      const open = family.value === "" || body.dataset.family === family.value;
      let left = 0;
      for (const entry of rows) {
        entry.row.hidden = !(open && wanted(entry));
        left += entry.row.hidden ? 0 : 1;
      }
      body.hidden = left === 0;
      shown += left;
    }
    byId("found").textContent = `${shown} of ${total} clauses`;
  };
  form.addEventListener("input", filter);
  form.addEventListener("submit", (event) => event.preventDefault());
  filter();
