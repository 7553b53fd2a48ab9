  // ------------------------------------------------------------ the address: the filters, or the cell that is open

  // An entry of the history holds the filters that belong to it, for an address that names a place has no room for them;
  // `over` says that the page itself opened a cell over the entry before.

  const option = (choice) => choice.dataset.name ?? choice.textContent;
  const value = (field) => {
    if (field === lonely) return field.checked ? "yes" : "";
    if (field === search || field.value === "") return field.value.trim();
    return option(field.selectedOptions[0]);
  };

  /** The filters as they stand in the address, "" if there are none. */
  const filters = () => String(new URLSearchParams(fields.map((field) => [field.id, value(field)]).filter(([, chosen]) => chosen)));

  const choose = (text) => {
    const chosen = new URLSearchParams(text);
    for (const field of fields) {
      const wanted = chosen.get(field.id) ?? "";
      if (field === lonely) field.checked = wanted === "yes";
      else if (field === search) field.value = wanted;
      else field.value = wanted && ([...field.options].find((each) => each.value && option(each) === wanted)?.value ?? "");
    }
    filter();
  };

  /** Storing may be forbidden, or happen too often; the page works without it. */
  const remember = (method, state, address) => {
    try {
      history[method](state, "", address);
    } catch {
      // The address stays as it was.
    }
  };

  let timer;
  let returning = false;
  const write = () => {
    const chosen = filters();
    const address = dialog.open ? `#${opened}` : chosen && `#?${chosen}`;
    if (address === location.hash) return;
    if (!dialog.open && history.state?.over) {
      returning = true;
      history.back();
      return;
    }
    const typing = document.activeElement === search && new URLSearchParams(location.hash.slice(2)).has("search");
    const closing = !dialog.open && location.hash.includes("@");
    const state = { filters: chosen, over: dialog.open };
    remember(typing || closing ? "replaceState" : "pushState", state, address || location.href.split("#")[0]);
  };
  /** Waits until the reader pauses: browsers allow so many changes of the address in a while. */
  const mirror = () => {
    clearTimeout(timer);
    timer = setTimeout(write, 200);
  };

  const place = () => {
    try {
      return byId(decodeURIComponent(location.hash.slice(1)));
    } catch {
      return null;
    }
  };

  /** The button of the cell that is to be open, or null: a reader may have gone on before its tests are unpacked. */
  let wanted = null;
  const open = (cell, after = () => {}) => {
    wanted = cell;
    if (tooOld) refuse();
    else
      unpacked(() => {
        if (wanted !== cell) return;
        show(Number(cell.dataset.cell));
        after();
      });
  };

  /** Shows what the address says: on loading, and after going back or forward or following a link. */
  const arrive = (state) => {
    clearTimeout(timer);
    if (state) choose(state.filters);
    else if (location.hash.startsWith("#?")) choose(location.hash.slice(2));
    const target = place();
    if (!state && target?.closest(".matrix [hidden]")) {
      choose("");
      setTimeout(() => target.scrollIntoView());
    }
    const cell = target?.closest(".matrix td")?.querySelector("[data-cell]");
    if (cell) open(cell);
    else {
      wanted = null;
      if (dialog.open) dialog.close();
    }
    if (!state) remember("replaceState", { filters: filters(), over: false });
  };

  form.addEventListener("input", mirror);
  form.addEventListener("reset", () => setTimeout(() => (filter(), mirror())));
  for (const cell of document.querySelectorAll("button[data-cell]")) cell.ariaHasPopup = "dialog";
  document.addEventListener("click", (event) => {
    const cell = event.target.closest("[data-cell]");
    if (cell) open(cell, mirror);
    if (event.target.closest("a[href^='#?']")) byId("matrix").scrollIntoView();
  });
  dialog.addEventListener("close", () => {
    const focused = document.activeElement;
    if (focused === document.body || dialog.contains(focused)) byId(opened)?.querySelector("button").focus();
    mirror();
  });
  addEventListener("popstate", ({ state }) => {
    if (!returning) arrive(state);
    else if (dialog.open) mirror();
    returning = false;
  });
  arrive(history.state);
