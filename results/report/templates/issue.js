  // ------------------------------------------------------------ a verdict as an issue, in Markdown

  /** The text on one line, without any meaning in Markdown or HTML; it mentions nobody. */
  const words = (text) =>
    String(text).replace(/\s+/g, " ").replaceAll("&", "&amp;").replaceAll("@", "@\u200b").replace(/[\\`*_[\]<>|#~]/g, "\\$&");
  const code = (text) => `\`${String(text).replace(/\s+/g, " ").replaceAll("`", "'")}\``;
  const block = (text, language) => {
    const fence = "`".repeat(Math.max(3, ...[...text.matchAll(/`+/g)].map(([run]) => run.length + 1)));
    return [`${fence}${language}`, text, fence, ""];
  };
  /** An address as it is where it has no meaning in Markdown, else as words. */
  const address = (link) => (/^https?:\/\/[^\s<>[\]"'`\\|@*]+$/.test(link) ? link : words(link));
  const prose = (pieces) => pieces.map(([text, href]) => (href ? address(href) : words(text))).join("");

  const checked = (list, left, texts) => {
    const rows = list.map(([passed, what, ...places]) => [passed ? "pass" : "**fail**", ...[what, ...places].map((place) => words(texts[place]))]);
    const heads = ["result", "what", "got", "want", "bound", "derivation of the bound"];
    const filled = heads.flatMap((_, column) => (rows.some((row) => row[column]) ? [column] : []));
    const line = (cells) => `| ${filled.map((column) => cells[column]).join(" | ")} |`;
    if (!rows.length) return [];
    const rest = left ? ["", `${left} more checks are left out.`] : [];
    return ["Checks:", "", line(heads), `|${filled.map(() => "---|").join("")}`, ...rows.map(line), ...rest, ""];
  };

  const facts = (pairs) => pairs.map(([name, value]) => `- ${words(name)}: ${words(value)}`);

  /** One verdict for a framework's maintainer. */
  const issue = (number, verdict) => {
    const { about, cells, clauses, findings, outcomes, packages, texts, wordings } = data();
    const [clause, run] = cells[number];
    const [name, level, newest, source] = clauses[clause];
    const requirement = wordings[run][clause] ?? newest;
    const [outcome, test, signature, reason, link, message, repro, , , leaks, list, left, finding] = verdict;
    const [judged, repeats] = verdict.slice(13);
    const [cause, kind, consequence, shows] = findings[finding] ?? [];
    const [[, framework]] = about[run];
    const where = typeof link === "string" ? link && address(link) : words(link[0]);
    return [
      `# ${words(framework)} fails ${code(name)}`,
      "",
      `${code(name)} (${words(level)}): ${words(requirement)}`,
      "",
      ...(source.length ? [`Source: ${prose(source)}`, ""] : []),
      "## What happened",
      "",
      `Test ${code(texts[test])}: ${outcomes[outcome][0]}${texts[signature] ? `, ${code(texts[signature])}` : ""}.`,
      "",
      ...(texts[message] ? block(texts[message], "text") : []),
      ...checked(list, left, texts),
      ...(leaks.length ? [`Process-wide settings left changed: ${leaks.map((leak) => code(texts[leak])).join(", ")}.`, ""] : []),
      ...(repeats.length ? [`Repeated in a new process: ${repeats.map((place) => words(texts[place])).join(", ")}.`, ""] : []),
      ...(reason.length || where || cause ? ["## Known cause", ""] : []),
      ...(cause ? [`Finding ${code(cause)}: ${words(kind)}, ${words(consequence)}.`, ""] : []),
      ...(reason.length ? [prose(reason), ""] : []),
      ...(where ? [`See ${where}${shows ? ` (${words(shows)})` : ""}`, ""] : []),
      ...(texts[judged] ? [`Observed in ${words(texts[judged])}; not confirmed here.`, ""] : []),
      ...(texts[repro] ? ["## Reproduce", "", ...block(texts[repro], "sh")] : []),
      "## Versions and environment",
      "",
      ...facts(about[run]),
      "",
      ...(packages[run].length ? ["<details><summary>Packages</summary>", "", ...facts(packages[run]), "", "</details>", ""] : []),
    ].join("\n");
  };
