  const byId = (id) => document.getElementById(id);

  /** An element with attributes and children; texts become text nodes, never markup. */
  const make = (tag, attributes, ...children) => {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children.filter((child) => child));
    return element;
  };

  let unpacking;
  /** The tests behind the cells, unpacked by the first call; most readers need none. */
  const unpacked = () =>
    (unpacking ??= (async () => {
      const packed = Uint8Array.from(atob(byId("tests-data").textContent), (character) => character.charCodeAt(0));
      const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
      return new Response(stream).json();
    })());

  // ------------------------------------------------------------ rows and columns that the filters leave

  const form = byId("filters");
  const fields = [...form.querySelectorAll("[name]")];
  const { search, outcome, run, family, across, level, open } = form.elements;
  const table = document.querySelector(".matrix");
  const columns = [...table.tHead.rows[0].cells].slice(1).map((head, index) => ({
    head,
    index: index + 1,
    slug: head.dataset.slug,
    framework: head.dataset.framework,
    isRun: head.classList.contains("run"),
  }));
  const families = [...table.tBodies].map((body) => ({ body, opened: false, toggle: body.querySelector(".open") }));
  const rows = families.flatMap((group) =>
    [...group.body.querySelectorAll(".clause")].map((row) => ({
      row,
      group,
      text: row.cells[0].textContent.toLowerCase(),
      across: row.dataset.across.split("|"),
      outcomes: [...row.cells].map((cell) => (cell.dataset.o ? cell.dataset.o.split(",") : [])),
    })),
  );

  /** The frameworks that are opened into their runs. */
  const opened = () => new Set(open.value.split(" ").filter(Boolean));

  /** Adds sources and names of tests to the texts that are searched. */
  let isExtended = false;
  const extend = async () => {
    isExtended = true;
    form.ariaBusy = "true";
    const { rows: details, verdicts } = await unpacked();
    details.forEach(({ source, tests }, index) => {
      const names = new Set(Object.values(tests).flatMap((list) => list.map(({ verdict }) => verdicts[verdict].test)));
      rows[index].text = [rows[index].text, ...source.map(({ text }) => text), ...names].join(" ").toLowerCase();
    });
    form.removeAttribute("aria-busy");
    filter();
  };

  const showColumns = (used) => {
    const frameworks = opened();
    for (const column of columns) {
      const { head, index, slug, framework, isRun } = column;
      const isChosen = !run.value || run.value === slug || run.value === framework;
      const isShown = isChosen && used.has(index) && (!isRun || run.value !== "" || frameworks.has(framework));
      head.querySelector(".open")?.setAttribute("aria-expanded", String(run.value === slug || frameworks.has(slug)));
      if (isShown === !head.hidden) continue;
      head.hidden = !isShown;
      for (const row of table.querySelectorAll("tbody tr")) row.cells[index].hidden = !isShown;
    }
  };

  const filter = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    if (words.length && !isExtended) extend();
    const wanted = outcome.value && (outcome.selectedOptions[0].dataset.values ?? outcome.value).split(",");
    const chosen = columns.filter(({ slug, framework }) => !run.value || [slug, framework].includes(run.value));
    const isActive = [...words, wanted, run.value, family.value, across.value, level.value].some(Boolean);
    const used = new Set(wanted ? [] : columns.map(({ index }) => index));
    let count = 0;
    for (const { body } of families) body.hidden = true;
    for (const { row, group, text, across: choices, outcomes } of rows) {
      const isHit = ({ index }) => (wanted ? outcomes[index].some((one) => wanted.includes(one)) : outcomes[index].length > 0);
      const hits = wanted || run.value ? chosen.filter(isHit) : chosen;
      const matches =
        hits.length > 0 &&
        words.every((word) => text.includes(word)) &&
        (!family.value || group.body.dataset.family === family.value) &&
        (!across.value || choices.includes(across.value)) &&
        (!level.value || row.dataset.level === level.value);
      row.hidden = !matches || !(isActive || group.opened);
      if (!matches) continue;
      count += 1;
      group.body.hidden = false;
      for (const { index } of hits) used.add(index);
    }
    for (const { opened: isOpen, toggle } of families) toggle.setAttribute("aria-expanded", String(isActive || isOpen));
    byId("all").ariaPressed = String(families.every(({ opened: isOpen }) => isOpen));
    showColumns(used);
    byId("found").textContent = `${count} of ${rows.length} clauses`;
  };

  const choose = (parameters) => {
    for (const field of fields) {
      field.value = parameters.get(field.name) ?? "";
      if (field.selectedIndex === -1) field.value = "";
    }
    filter();
  };

  // ------------------------------------------------------------ the address: #PLACE?FILTERS, both optional

  const parsed = () => {
    const [place, query = ""] = location.hash.slice(1).split("?", 2);
    return [decodeURIComponent(place), query];
  };

  const addressOf = (place) => {
    const chosen = new URLSearchParams([...new FormData(form)].filter(([, value]) => value.trim()));
    return `#${place}${chosen.size ? `?${chosen}` : ""}`;
  };

  /** Browsers forbid too many changes of the address in a while; the page works without them. */
  const write = (place) => {
    try {
      const address = addressOf(place);
      history.replaceState(null, "", address === "#" ? location.href.split("#")[0] : address);
    } catch {
      // The address stays as it was.
    }
  };
  let timer;
  const changed = () => {
    filter();
    clearTimeout(timer);
    timer = setTimeout(() => write(""), 200);
  };

  /** Shows what the address says; one that names a place alone leaves the filters as they are. */
  const arrive = () => {
    clearTimeout(timer);
    let [place, query] = ["", ""];
    try {
      [place, query] = parsed();
    } catch {
      return;
    }
    if (query || !place) choose(new URLSearchParams(query));
    const [clause, slug] = place.split("@");
    if (slug) showCell(rows.findIndex(({ row }) => row.id === `clause-${clause}` || row.id === clause), slug);
    else if (dialog.open) dialog.close();
    const target = byId(place);
    const entry = rows.find(({ row }) => row === target);
    if (entry?.row.hidden) {
      entry.group.opened = true;
      filter();
      if (entry.row.hidden) choose(new URLSearchParams());
      target.scrollIntoView();
    } else if (query && !place) byId("matrix").scrollIntoView();
    for (let fold = target?.closest("details"); fold; fold = fold.parentElement.closest("details")) fold.open = true;
  };

  form.addEventListener("input", changed);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => {
    open.value = "";
    setTimeout(changed);
  });
  byId("all").addEventListener("click", () => {
    const isOpen = families.every((group) => group.opened);
    for (const group of families) group.opened = !isOpen;
    filter();
  });
  table.addEventListener("click", ({ target }) => {
    const group = families.find(({ toggle }) => toggle === target);
    const column = columns.find(({ head }) => target.matches(".open") && head.contains(target));
    const cell = target.closest(".cell");
    if (group) {
      group.opened = !group.opened;
      filter();
    } else if (column) {
      const frameworks = opened();
      if (!frameworks.delete(column.slug)) frameworks.add(column.slug);
      open.value = [...frameworks].join(" ");
      changed();
    } else if (cell) {
      clearTimeout(timer);
      const { cellIndex, parentElement } = cell.closest("td");
      const name = parentElement.id.replace(/^clause-/, "");
      location.hash = addressOf(`${name}@${columns[cellIndex - 1].slug}`);
    }
  });
  addEventListener("hashchange", arrive);
