(() => {
  "use strict";
  const byId = (id) => document.getElementById(id);
  let data;
  const json = (id) => JSON.parse(byId(id).textContent);

  /** An element with attributes and children; texts become text nodes, never markup. */
  const make = (tag, attributes, ...children) => {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes ?? {})) element.setAttribute(name, value);
    element.append(...children.filter((child) => child !== null && child !== ""));
    return element;
  };

  // ------------------------------------------------------------ dark mode

  const root = document.documentElement;
  const preferred = matchMedia("(prefers-color-scheme: dark)");
  const button = byId("theme");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : preferred.matches);
  const tellTheme = () => button.setAttribute("aria-pressed", String(isDark()));
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    try {
      localStorage.setItem("conformance-theme", root.dataset.theme);
    } catch {
      // Not remembered then.
    }
    tellTheme();
  });
  preferred.addEventListener("change", tellTheme);
  button.hidden = false;
  tellTheme();

  // ------------------------------------------------------------ filters

  const bodies = [...document.querySelectorAll(".matrix tbody")].map((body) => ({
    body,
    rows: [...body.querySelectorAll(".clause")].map((row) => ({
      row,
      text: row.cells[0].textContent.toLowerCase(),
      outcomes: [...row.cells].slice(1).map((cell) => cell.dataset.outcomes.trim().split(" ")),
    })),
  }));
  const form = byId("filters");
  const [search, family, level, outcome, run, lonely] = ["search", "family", "level", "outcome", "run", "lonely"].map(byId);
  const total = bodies.reduce((sum, { rows }) => sum + rows.length, 0);

  /** Makes sources and names of tests be found as well; most readers never search. */
  let looked = false;
  const lookBehind = () => {
    if (looked) return;
    looked = true;
    data ??= json("cells-data");
    const entries = bodies.flatMap(({ rows }) => rows);
    const names = entries.map(() => new Set());
    for (const [clause, , verdicts] of data.cells) for (const [, test] of verdicts) names[clause].add(data.texts[test]);
    entries.forEach((entry, clause) => {
      const source = data.clauses[clause][3].map(([text]) => text);
      entry.text = [entry.text, ...source, ...names[clause]].join(" ").toLowerCase();
    });
  };

  const filter = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    if (words.length) lookBehind();
    const here = (outcomes) => (run.value === "" ? outcomes : [outcomes[Number(run.value)]]);
    const wanted = ({ row, text, outcomes }) =>
      words.every((word) => text.includes(word)) &&
      (level.value === "" || row.dataset.level === level.value) &&
      (!lonely.checked || row.dataset.lonely === "1") &&
      (outcome.value === "" || here(outcomes).some((found) => found.includes(outcome.value)));
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
  form.addEventListener("reset", () => setTimeout(filter));
  filter();

  /** A link to a clause that the filters hide shows it again. */
  const reveal = () => {
    const target = document.querySelector(".clause:target");
    if (target?.closest("[hidden]")) {
      form.reset();
      setTimeout(() => target.scrollIntoView());
    }
  };
  addEventListener("hashchange", reveal);

  // ------------------------------------------------------------ the tests behind a cell

  const dialog = byId("cell");
  const status = byId("cell-status");

  const linked = (pieces) =>
    pieces.map(([text, href]) => (href ? make("a", { href, rel: "noopener noreferrer" }, text) : text));

  const copy = async (text, shown) => {
    try {
      await navigator.clipboard.writeText(text);
      status.textContent = "Copied.";
    } catch {
      getSelection().selectAllChildren(shown);
      status.textContent = document.execCommand("copy") ? "Copied." : "Selected; copy it with the keyboard.";
    }
  };

  const command = (text) => {
    const shown = make("code", { class: "repro" }, text);
    const purpose = make("span", { class: "sr" }, " the command that repeats this test");
    const press = make("button", { type: "button", class: "quiet copy" }, "Copy", purpose);
    press.addEventListener("click", async () => {
      await copy(text, shown);
      press.textContent = status.textContent === "Copied." ? "Copied" : "Selected";
    });
    return make("div", { class: "command" }, shown, press);
  };

  const checks = (list, left) => {
    const heads = ["measured", "expected", "bound", "how the bound was derived"];
    const lines = list.map(([held, what, ...places]) => [held, data.texts[what], places.map((place) => data.texts[place])]);
    const told = heads.flatMap((_, column) => (lines.some(([, , texts]) => texts[column]) ? [column] : []));
    const line = ([held, what, texts]) => {
      const mark = make("td", { class: held ? "held" : "broken" }, held ? "✓ held" : "✗ broken");
      return make("tr", {}, mark, make("th", { scope: "row" }, what), ...told.map((column) => make("td", {}, texts[column])));
    };
    const head = ["result", "what", ...told.map((column) => heads[column])].map((text) => make("th", { scope: "col" }, text));
    const table = make("table", {}, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...lines.map(line)));
    const scroll = make("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "Checks of the test" }, table);
    return [scroll, left ? make("p", {}, `${left} more checks are left out.`) : null];
  };

  const inside = (verdict) => {
    const [, , signature, reason, link, message, repro, seed, seconds, leaks, list, left] = verdict;
    const text = (place) => data.texts[place];
    const facts = [
      text(signature) && `signature ${text(signature)}`,
      seed !== null && `seed ${seed}`,
      `${seconds} s`,
      leaks.length > 0 && `left changed: ${leaks.map(text).join(", ")}`,
    ];
    const source = typeof link === "string" ? link && make("a", { href: link, rel: "noopener noreferrer" }, "source") : link[0];
    return make(
      "div",
      { class: "inside" },
      reason.length || source ? make("p", {}, ...linked(reason), reason.length ? " " : "", source) : null,
      text(message) ? make("pre", { tabindex: "0", role: "group", "aria-label": "Message" }, text(message)) : null,
      ...(list.length ? checks(list, left) : []),
      make("p", { class: "sub" }, facts.filter(Boolean).join(" · ")),
      text(repro) ? command(text(repro)) : null,
    );
  };

  const test = (verdict, open) => {
    const [word, symbol] = data.outcomes[verdict[0]];
    const title = [make("span", { class: `o-${word}` }, symbol, make("span", { class: "sr" }, ` ${word}`)), " "];
    const name = make("code", {}, data.texts[verdict[1]]);
    const details = make("details", { class: "test" }, make("summary", {}, ...title, name));
    const fill = () => details.childElementCount === 1 && details.append(inside(verdict));
    details.addEventListener("toggle", () => details.open && fill());
    if (open) {
      fill();
      details.open = true;
    }
    return details;
  };

  const show = (number) => {
    data ??= json("cells-data");
    const [clause, column, verdicts] = data.cells[number];
    const [name, strength, requirement, source, history] = data.clauses[clause];
    byId("cell-title").textContent = name;
    byId("cell-run").textContent = data.runs[column];
    const past = history.map((entry) => make("li", {}, ...linked(entry)));
    const about = make(
      "div",
      { class: "about" },
      make("p", {}, `${strength}: ${requirement}`),
      source.length ? make("p", {}, "Source: ", ...linked(source)) : null,
      past.length ? make("details", {}, make("summary", {}, "What broke it before"), make("ul", {}, ...past)) : null,
    );
    const passed = data.outcomes.length - 1;
    const open = verdicts.length === 1 ? 1 : Math.min(2, verdicts.filter(([outcome]) => outcome < passed - 1).length);
    const tests = verdicts.flatMap((verdict, index) => {
      const [word, symbol] = data.outcomes[verdict[0]];
      const together = verdicts.filter(([outcome]) => outcome === verdict[0]).length;
      const heading = make("h3", { class: `o-${word}` }, `${symbol} ${word}, ${together} of ${verdicts.length}`);
      const first = index === 0 || verdicts[index - 1][0] !== verdict[0];
      return first ? [heading, test(verdict, index < open)] : [test(verdict, index < open)];
    });
    byId("cell-body").replaceChildren(about, ...tests);
    status.textContent = "";
    dialog.showModal();
    byId("cell-body").scrollTop = 0;
    byId("cell-title").focus();
  };
  document.addEventListener("click", (event) => {
    const cell = event.target.closest("[data-cell]");
    if (cell) show(Number(cell.dataset.cell));
  });
  byId("cell-close").addEventListener("click", () => dialog.close());
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
})();
