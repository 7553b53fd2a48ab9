(() => {
  "use strict";
  const byId = (id) => document.getElementById(id);
  const form = byId("filters");
  const selects = ["framework", "family", "outcome"].map(byId);
  const changed = byId("changed");
  const search = byId("search");
  const rows = [...byId("rows").rows];

  const filter = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of rows) {
      const text = words.length ? row.textContent.toLowerCase() : "";
      const wanted = words.every((word) => text.includes(word)) && selects.every(({ id, value }) => value === "" || row.dataset[id] === value);
      row.hidden = !wanted || (changed.checked && !("changed" in row.dataset));
      shown += row.hidden ? 0 : 1;
    }
    byId("found").textContent = `${shown} of ${rows.length} histories`;
  };

  /** The filters as they stand in the address; only those that are not at their defaults. */
  const chosen = () => {
    const pairs = selects.filter(({ value }) => value).map(({ id, value }) => [id, value]);
    if (search.value) pairs.push(["search", search.value]);
    if (changed.checked !== changed.defaultChecked) pairs.push(["changed", changed.checked ? "yes" : "no"]);
    return String(new URLSearchParams(pairs));
  };

  const write = () => {
    try {
      history.replaceState(null, "", chosen() ? `#?${chosen()}` : location.href.split("#")[0]);
    } catch {
      // Too many changes of the address in a while: it stays as it was.
    }
  };

  const read = () => {
    if (location.hash && !location.hash.startsWith("#?")) return;
    const wanted = new URLSearchParams(location.hash.slice(2));
    for (const select of selects) {
      const value = wanted.get(select.id) ?? "";
      select.value = [...select.options].some((option) => option.value === value) ? value : "";
    }
    search.value = wanted.get("search") ?? "";
    const box = wanted.get("changed");
    changed.checked = box === "yes" || (box !== "no" && changed.defaultChecked);
  };

  form.addEventListener("input", () => (filter(), write()));
  form.addEventListener("reset", () => setTimeout(() => (filter(), write())));
  form.addEventListener("submit", (event) => event.preventDefault());
  addEventListener("hashchange", () => (read(), filter()));
  read();
  filter();
})();
