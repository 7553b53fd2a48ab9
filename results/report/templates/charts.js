{
  const byId = (id) => document.getElementById(id);
  const data = JSON.parse(byId("drawn-data").textContent);
  const label = (run) => data.runs[run][0];
  const colour = (run) => String(data.runs[run][2]);
  const finite = (value) => typeof value === "number";
  const shown = (value) => (finite(value) ? Number(value.toPrecision(6)).toString() : String(value));
  const make = (tag, attributes, ...children) => {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children);
    return element;
  };

  const tip = make("div", { id: "tip", "aria-hidden": "true" });
  tip.hidden = true;
  document.body.append(tip);
  const tooltip = (handler, event, item, value) => {
    tip.hidden = value === null || value === undefined || value === "";
    if (tip.hidden) return;
    tip.textContent = String(value);
    tip.style.left = `${Math.max(4, Math.min(event.clientX + 12, innerWidth - tip.offsetWidth - 8))}px`;
    tip.style.top = `${Math.max(4, Math.min(event.clientY + 12, innerHeight - tip.offsetHeight - 8))}px`;
  };

  // ------------------------------------------------------------ one drawing each: specification, rows, table

  const losses = ([, exact, spread, lines], as) => {
    const apart = as === "distance";
    const moved = (value, step, [base, wide]) => {
      if (!apart) return value;
      return finite(value) && finite(base[step]) && wide[step] > 0 ? (value - base[step]) / wide[step] : null;
    };
    const rows = exact.flatMap((value, x) => {
      const here = [{ p: "base", x, y: apart ? 0 : value }];
      if (finite(spread[x])) here.push({ p: "band", x, lo: apart ? -1 : value - spread[x], hi: apart ? 1 : value + spread[x] });
      return here.filter((row) => Object.values(row).every((cell) => typeof cell === "string" || finite(cell)));
    });
    for (const [run, points, own] of lines) {
      points.forEach((point, x) => {
        const y = moved(point, x, own ?? [exact, spread]);
        const t = `${label(run)}\nupdate ${x}: ${shown(point)}${apart ? `, ${shown(y)} spreads away` : ""}`;
        if (finite(y)) rows.push({ p: "run", x, y, r: run, c: colour(run), t });
      });
    }
    const values = rows.flatMap(({ y }) => (finite(y) ? [y] : []));
    const least = Math.min(...values);
    const logarithmic = !apart && least > 0 && Math.max(...values) > 50 * least;
    if (logarithmic) for (const row of rows) if (row.p === "band" && !(row.lo > 0)) row.lo = Math.min(least, row.hi);
    const columns = [
      ...lines.flatMap(([run, points, own]) => {
        const mine = own ? [[`oracle for ${label(run)}`, own[0]], [`spread for ${label(run)}`, own[1]]] : [];
        return [[label(run), points], ...mine];
      }),
      ["oracle", exact],
      ["spread", spread],
    ];
    const heads = ["update", ...columns.map(([head]) => head)];
    const steps = Math.max(...columns.map(([, points]) => points.length));
    const table = Array.from({ length: steps }, (_, x) => [x, ...columns.map(([, points]) => points[x])]);
    return [apart ? "distance" : logarithmic ? "loss-log" : "loss", rows, heads, table];
  };

  const scales = ([, lines]) => {
    const rows = lines.flatMap(([run, points]) =>
      points.flatMap((y, x) =>
        finite(y) && y > 0 ? [{ x, y, r: run, c: colour(run), t: `${label(run)}\nupdate ${x}: ${shown(y)}` }] : [],
      ),
    );
    const steps = Math.max(...lines.map(([, points]) => points.length));
    const table = Array.from({ length: steps }, (_, x) => [x, ...lines.map(([, points]) => points[x])]);
    return ["scale", rows, ["update", ...lines.map(([run]) => label(run))], table];
  };

  const costs = ([, unit, lines]) => {
    const names = [...new Set(lines.map(([name]) => name))];
    const runs = new Set(lines.map(([, run]) => run)).size;
    const rows = lines.filter((line) => line.slice(2).every(finite)).map(([name, run, lo, x, hi, samples]) => ({
      g: name, o: names.indexOf(name), r: run, c: colour(run), lo, x, hi,
      t: `${label(run)}\n${name}\n${shown(x)} ${unit}, ${shown(lo)} to ${shown(hi)} in ${samples} samples`,
    }));
    const heads = ["measurement", "run", `minimum, ${unit}`, `median, ${unit}`, `maximum, ${unit}`, "samples"];
    return ["cost", rows, heads, lines.map(([name, run, ...rest]) => [name, label(run), ...rest]), 40 + names.length * (14 + 11 * runs)];
  };

  const formats = ([, operations]) => {
    const runs = [...new Set(operations.flatMap(([, cells]) => cells.map(([run]) => run)))].sort((a, b) => a - b);
    const rows = operations.flatMap(([name, cells], o) =>
      cells.map(([run, text, kind]) => ({
        g: name, o, r: run, h: data.runs[run][1], k: data.categories[kind], w: text, t: `${label(run)}\n${name}: ${text}`,
      })),
    );
    const table = operations.map(([name, cells]) => {
      const found = new Map(cells.map(([run, text]) => [run, text]));
      return [name, ...runs.map((run) => found.get(run))];
    });
    return ["format", rows, ["operation", ...runs.map(label)], table, 20 * operations.length];
  };

  // ------------------------------------------------------------ drawing them when nothing else is to do

  const later = globalThis.requestIdleCallback ?? setTimeout;

  const fill = (region, heads, table) => {
    const head = make("tr", {}, ...heads.map((text) => make("th", { scope: "col" }, text)));
    const lines = table.map(([first, ...rest]) => {
      const cells = rest.map((value) => make("td", {}, value === undefined ? "–" : String(value)));
      return make("tr", {}, make("th", { scope: "row" }, String(first)), ...cells);
    });
    region.replaceChildren(make("table", {}, make("thead", {}, head), make("tbody", {}, ...lines)));
  };

  const chart = (id, entries, prepare) => {
    const figure = byId(`${id}-chart`);
    if (!figure) return;
    const canvas = figure.querySelector(".canvas");
    const details = figure.querySelector(".data");
    const choice = byId(`${id}-choice`);
    let drawn = Promise.resolve();
    let view;
    const current = () =>
      prepare(entries[Number(choice.value)], figure.querySelector("input[type=radio]:checked")?.value);
    const table = () => {
      const [, , heads, lines] = current();
      if (details.open) fill(details.querySelector(".scroll"), heads, lines);
    };
    const draw = async () => {
      const [name, rows, , , height] = current();
      const specification = structuredClone(data.specifications[name]);
      specification.datasets.rows = rows;
      specification.height = height ?? specification.height;
      const steps = [...new Set(rows.map(({ x }) => x))].sort((a, b) => a - b);
      const apart = Math.ceil(steps.length / 20);
      if (name !== "cost" && name !== "format") {
        for (const { encoding } of specification.layer) encoding.x.axis.values = steps.filter((_, i) => i % apart === 0);
      }
      view?.finalize();
      view = await vegaEmbed(canvas, specification, {
        mode: "vega-lite", actions: false, renderer: "svg", ast: true, defaultStyle: false, tooltip,
      });
      canvas.querySelector("svg").setAttribute("aria-hidden", "true");
      canvas.dataset.drawn = name;
      canvas.dataset.rows = rows.length;
    };
    const update = () => {
      drawn = drawn.then(draw);
      table();
    };
    details.addEventListener("toggle", table);
    figure.addEventListener("change", update);
    later(update, { timeout: 1000 });
  };

  chart("losses", data.losses, losses);
  chart("scales", data.scales, scales);
  chart("costs", data.costs, costs);
  chart("formats", data.formats, formats);
}
