  // ------------------------------------------------------------ the tests behind a cell

  const dialog = byId("cell");
  const status = byId("cell-status");

  const shade = (word) => `o-${word.replaceAll(" ", "-")}`;

  const linked = (pieces) =>
    pieces.map(([text, href]) => (href ? make("a", { href, rel: "noopener noreferrer" }, text) : text));

  const copied = async (press, text, shown) => {
    const done = await copy(text, shown);
    status.textContent = done ? "Copied." : "Selected; copy it with the keyboard.";
    press.textContent = done ? "Copied" : "Selected";
  };

  const command = (text) => {
    const shown = make("code", { class: "repro" }, text);
    const purpose = make("span", { class: "sr" }, " the command that reruns this test");
    const press = make("button", { type: "button", class: "quiet copy" }, "Copy", purpose);
    press.addEventListener("click", () => copied(press, text, shown));
    return make("div", { class: "command" }, shown, press);
  };

  /** The Markdown is shown as well, so that it can be read before, and copied where a page may not copy. */
  const report = (number, verdict) => {
    const shown = make("textarea", { class: "repro", rows: "10", readonly: "", "aria-label": "Issue text in Markdown" });
    shown.hidden = true;
    const press = make("button", { type: "button", class: "quiet issue" }, "Copy as issue");
    press.addEventListener("click", () => {
      shown.value = issue(number, verdict);
      shown.hidden = false;
      return copied(press, shown.value, shown);
    });
    return make("div", { class: "reported" }, press, shown);
  };

  const checks = (list, left) => {
    const heads = ["got", "want", "bound", "derivation of the bound"];
    const { texts: all } = data();
    const lines = list.map(([passed, what, ...places]) => [passed, all[what], places.map((place) => all[place])]);
    const filled = heads.flatMap((_, column) => (lines.some(([, , texts]) => texts[column]) ? [column] : []));
    const line = ([passed, what, texts]) => {
      const mark = make("td", { class: passed ? "passed" : "failed" }, passed ? "✓ pass" : "✗ fail");
      return make("tr", {}, mark, make("th", { scope: "row" }, what), ...filled.map((column) => make("td", {}, texts[column])));
    };
    const head = ["result", "what", ...filled.map((column) => heads[column])].map((text) => make("th", { scope: "col" }, text));
    const table = make("table", {}, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...lines.map(line)));
    const scroll = make("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "Checks of the test" }, table);
    return [scroll, left ? make("p", {}, `${left} more checks are left out.`) : null];
  };

  const inside = (number, verdict) => {
    const { outcomes, texts, findings } = data();
    const [outcome, , signature, reason, link, message, repro, seed, seconds, leaks, list, left, finding] = verdict;
    const [judged, repeats, settings] = verdict.slice(13);
    const text = (place) => texts[place];
    const [name, kind, consequence] = findings[finding] ?? [];
    const facts = [
      name && `finding ${name}: ${kind}, ${consequence.replaceAll("-", " ")}`,
      text(signature) && `signature ${text(signature)}`,
      seed !== null && `seed ${seed}`,
      `${seconds} s`,
      leaks.length > 0 && `process-wide settings left changed: ${leaks.map(text).join(", ")}`,
    ];
    const doubts = [
      text(judged) && `Not confirmed here: the failure was observed in ${text(judged)}.`,
      repeats.length > 0 && `Repeated in a new process: ${repeats.map(text).join(", ")}.`,
    ];
    const source = typeof link === "string" ? link && make("a", { href: link, rel: "noopener noreferrer" }, "source") : link[0];
    return make(
      "div",
      { class: "inside" },
      reason.length || source ? make("p", {}, ...linked(reason), reason.length ? " " : "", source) : null,
      ...doubts.filter(Boolean).map((doubt) => make("p", { class: "doubt" }, doubt)),
      text(message) ? make("pre", { tabindex: "0", role: "group", "aria-label": "Message" }, text(message)) : null,
      ...(list.length ? checks(list, left) : []),
      make("p", { class: "sub" }, facts.filter(Boolean).join(" · ")),
      settings.length ? make("p", { class: "sub" }, `Training runs: ${settings.map(text).join("; ")}`) : null,
      text(repro) ? command(text(repro)) : null,
      outcomes[outcome][2] ? report(number, verdict) : null,
    );
  };

  const test = (number, verdict, open) => {
    const [word, symbol] = data().outcomes[verdict[0]];
    const title = [make("span", { class: shade(word) }, symbol, make("span", { class: "sr" }, ` ${word}`)), " "];
    const name = make("code", {}, data().texts[verdict[1]]);
    const details = make("details", { class: "test" }, make("summary", {}, ...title, name));
    const fill = () => details.childElementCount === 1 && details.append(inside(number, verdict));
    details.addEventListener("toggle", () => details.open && fill());
    if (open) {
      fill();
      details.open = true;
    }
    return details;
  };

  /** The cell that is open, by its name in addresses, or "". */
  let opened = "";

  const show = (number) => {
    const { cells, clauses, outcomes, runs, wordings } = data();
    const [clause, column, verdicts] = cells[number];
    const [name, strength, newest, source, history] = clauses[clause];
    const requirement = wordings[column][clause] ?? newest;
    byId("cell-title").textContent = name;
    byId("cell-run").textContent = runs[column];
    const past = history.map((entry) => make("li", {}, ...linked(entry)));
    const about = make(
      "div",
      { class: "about" },
      make("p", {}, `${strength}: ${requirement}`),
      source.length ? make("p", {}, "Source: ", ...linked(source)) : null,
      past.length ? make("details", {}, make("summary", {}, "Earlier failures"), make("ul", {}, ...past)) : null,
    );
    const calm = ["not offered", "unsupported", "pass"];
    const telling = verdicts.filter(([outcome]) => !calm.includes(outcomes[outcome][0]));
    const open = verdicts.length === 1 ? 1 : Math.min(2, telling.length);
    const tests = verdicts.flatMap((verdict, index) => {
      const [word, symbol] = outcomes[verdict[0]];
      const together = verdicts.filter(([outcome]) => outcome === verdict[0]).length;
      const heading = make("h3", { class: shade(word) }, `${symbol} ${word}, ${together} of ${verdicts.length}`);
      const first = index === 0 || verdicts[index - 1][0] !== verdict[0];
      return [...(first ? [heading] : []), test(number, verdict, index < open)];
    });
    byId("cell-body").replaceChildren(about, ...tests);
    status.textContent = "";
    opened = document.querySelector(`.matrix [data-cell="${number}"]`).closest("td").id;
    if (!dialog.open) dialog.showModal();
    byId("cell-body").scrollTop = 0;
    byId("cell-title").focus();
  };
  /** Says in place of a cell's tests why this browser cannot show them. */
  const refuse = () => {
    byId("cell-title").textContent = "The tests cannot be shown";
    byId("cell-run").textContent = "";
    byId("cell-body").replaceChildren(make("p", {}, byId("too-old").textContent));
    opened = "";
    if (!dialog.open) dialog.showModal();
  };
  byId("cell-close").addEventListener("click", () => dialog.close());
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
