  // ------------------------------------------------------------ the tests behind a cell

  const dialog = byId("cell");
  const calm = ["not offered", "unsupported", "pass"];
  const shade = (word) => `o-${word.replaceAll(" ", "-")}`;
  const paragraph = (text, attributes = {}) => text && make("p", attributes, text);
  const linked = (parts = []) =>
    parts.map(({ text, href }) => (href ? make("a", { href, rel: "noopener noreferrer" }, text) : text));

  const checkTable = (checks, derivations) => {
    const shown = checks.map((check) => ({ ...check, derivation: derivations[check.derivation] }));
    const filled = ["got", "want", "bound", "derivation"].filter((name) => shown.some((check) => check[name] !== ""));
    const heads = ["result", "what", ...filled];
    const lines = shown.map((check) =>
      make(
        "tr",
        {},
        make("td", { class: check.passed ? "o-pass" : "o-fail" }, check.passed ? "✓ pass" : "✗ fail"),
        make("th", { scope: "row" }, check.what),
        ...filled.map((name) => make("td", {}, check[name])),
      ),
    );
    const head = make("tr", {}, ...heads.map((text) => make("th", { scope: "col" }, text)));
    const table = make("table", {}, make("thead", {}, head), make("tbody", {}, ...lines));
    return make("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "Checks of the test" }, table);
  };

  const inside = (verdict, seconds, { checks, derivations }) => {
    const { reason, link, address, message, leaks, finding, signature, seed, elsewhere, repeats, runs, repro } = verdict;
    const source = link ? make("a", { href: link, rel: "noopener noreferrer" }, "source") : address;
    const facts = [
      finding && `finding ${finding}`,
      signature && `signature ${signature}`,
      seed && `seed ${seed}`,
      `${seconds} s`,
      leaks && `process-wide settings left changed: ${leaks.join(", ")}`,
    ];
    return [
      reason || source ? make("p", {}, ...linked(reason), " ", source) : "",
      paragraph(elsewhere && `Not confirmed here: the failure was observed in ${elsewhere}.`, { class: "doubt" }),
      paragraph(repeats && `Repeated in a new process: ${repeats.join(", ")}.`, { class: "doubt" }),
      message && make("pre", { tabindex: "0", role: "group", "aria-label": "Message" }, message),
      verdict.checks && checkTable(verdict.checks.map((number) => checks[number]), derivations),
      paragraph(verdict.left && `${verdict.left} more checks are left out.`),
      paragraph(facts.filter(Boolean).join(" · "), { class: "sub" }),
      paragraph(runs && `Training runs: ${runs.join("; ")}`, { class: "sub" }),
      repro && make("code", { class: "repro", title: "the command that repeats this test" }, repro),
    ];
  };

  /** A fold whose content is made when it is first opened. */
  const folded = (attributes, title, isOpen, content) => {
    const details = make("details", attributes, make("summary", {}, ...title));
    const fill = () => details.childElementCount === 1 && details.append(...content().filter(Boolean));
    details.addEventListener("toggle", () => details.open && fill());
    if (isOpen) fill();
    details.open = isOpen;
    return details;
  };

  const mark = (word) => make("span", { class: shade(word) }, word);

  /** The tests of a clause in a run, the gravest first; the first two that say most are open. */
  const testList = (tests, data) => {
    const telling = tests.filter(({ verdict }) => !calm.includes(data.verdicts[verdict].outcome)).length;
    const openCount = tests.length === 1 ? 1 : Math.min(2, telling);
    return tests.map(({ verdict: number, seconds }, index) => {
      const verdict = data.verdicts[number];
      const title = [mark(verdict.outcome), " ", make("code", {}, verdict.test ?? "")];
      return folded({ class: "test" }, title, index < openCount, () => inside(verdict, seconds, data));
    });
  };

  const show = (title, where, ...content) => {
    byId("cell-title").textContent = title;
    byId("cell-run").textContent = where;
    byId("cell-body").replaceChildren(...content.filter(Boolean));
    if (!dialog.open) dialog.showModal();
    byId("cell-body").scrollTop = 0;
    byId("cell-title").focus();
  };

  let openPlace = "";

  /** Shows a clause in a column: in one run, or in each run of a framework. */
  const showCell = async (number, slug) => {
    const column = columns.find((one) => one.slug === slug);
    if (number < 0 || !column) return;
    const [place] = parsed();
    const data = await unpacked();
    if (parsed()[0] !== place) return;
    openPlace = place;
    const { name, level, requirement, source, history, tests, wordings } = data.rows[number];
    const runs = Object.keys(tests).filter((index) => [data.runs[index].slug, data.runs[index].framework].includes(slug));
    const wording = runs.length === 1 && wordings[runs[0]];
    const sections = runs.map((index) => {
      if (runs.length === 1) return testList(tests[index], data);
      const words = tests[index].map(({ verdict }) => data.verdicts[verdict].outcome);
      const marks = [...new Set(words)].flatMap((word) => [" ", mark(word), ` ${words.filter((one) => one === word).length}`]);
      return [folded({ class: "of-run" }, [data.runs[index].label, ...marks], false, () => testList(tests[index], data))];
    });
    show(
      name,
      runs.length === 1 ? data.runs[runs[0]].label : `${runs.length} runs of ${slug}`,
      make("p", { class: "about" }, `${level}: ${wording || requirement}`),
      source.length && make("p", { class: "about" }, "Source: ", ...linked(source)),
      history.length && folded({ class: "about" }, ["Earlier failures"], false, () => [make("ul", {}, ...history.map((entry) => make("li", {}, ...linked(entry))))]),
      ...sections.flat(),
    );
  };

  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  dialog.addEventListener("close", () => {
    const [place] = parsed();
    if (place !== openPlace) return;
    write("");
    const [clause, slug] = place.split("@");
    const row = byId(`clause-${clause}`) ?? byId(clause);
    const column = columns.find((one) => one.slug === slug);
    row?.cells[column?.index]?.querySelector("button")?.focus();
  });
  filter();
  arrive();
