  // ------------------------------------------------------------ curves of the runs, drawn as SVG

  const curves = JSON.parse(byId("curves-data").textContent);
  const [left, right, top, bottom] = [70, 790, 10, 270];
  const dashes = ["", "6 3", "2 2", "8 3 2 3", "10 4", "4 2", "1 3", "12 3 3 3"];
  const isNumber = (value) => typeof value === "number";

  const draw = (tag, attributes, ...children) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children);
    return element;
  };

  /** At most about six round values between two, which are powers of two on a logarithmic axis. */
  const ticks = (low, high, isLogarithmic) => {
    if (isLogarithmic) {
      const [first, last] = [Math.ceil(Math.log2(low)), Math.floor(Math.log2(high))];
      const step = Math.max(1, Math.ceil((last - first) / 6));
      return Array.from({ length: Math.floor((last - first) / step) + 1 }, (_, index) => 2 ** (first + index * step));
    }
    const unit = 10 ** Math.floor(Math.log10((high - low) / 5));
    const step = unit * ([1, 2, 5].find((factor) => factor * unit * 6 >= high - low) ?? 10);
    const first = Math.ceil(low / step);
    return Array.from({ length: Math.floor(high / step) - first + 1 }, (_, index) => (first + index) * step);
  };

  /** Draws lines over a band; a line has `points`, a `label`, a `colour`, a `dash`, and `isStepped`. */
  const plot = (chart, lines, band, isLogarithmic) => {
    const drawable = (value) => isNumber(value) && (!isLogarithmic || value > 0);
    const values = [...lines.flatMap(({ points }) => points), ...band.flat()].filter(drawable);
    let [low, high] = [values.reduce((a, b) => Math.min(a, b), Infinity), values.reduce((a, b) => Math.max(a, b), -Infinity)];
    if (!(low < high)) [low, high] = isLogarithmic ? [low / 2 || 1, high * 2 || 2] : [(low || 0) - 1, (high || 0) + 1];
    const last = Math.max(1, ...lines.map(({ points }) => points.length - 1));
    const scaled = isLogarithmic ? Math.log2 : (value) => value;
    const x = (step) => left + ((right - left) * step) / last;
    const y = (value) => bottom - ((bottom - top) * (scaled(value) - scaled(low))) / (scaled(high) - scaled(low));
    const path = (points, isStepped) => {
      let isPen = false;
      return points.map((value, step) => {
        const start = isPen ? (isStepped ? `H${x(step)}V` : `L${x(step)} `) : `M${x(step)} `;
        isPen = drawable(value);
        return isPen ? start + y(value) : "";
      }).join("");
    };
    const grid = ticks(low, high, isLogarithmic).flatMap((value) => [
      draw("line", { class: "grid", x1: left, x2: right, y1: y(value), y2: y(value) }),
      draw("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, String(Number(value.toPrecision(6)))),
    ]);
    const steps = ticks(0, last, false).filter(Number.isInteger);
    const below = steps.map((step) => draw("text", { x: x(step), y: bottom + 20, "text-anchor": "middle" }, String(step)));
    const [lower = [], upper = []] = band;
    const edge = (value, step) => `${x(step)},${y(drawable(value) ? value : low)}`;
    const area = draw("polygon", { class: "band", points: [...lower.map(edge), ...upper.map(edge).reverse()].join(" ") });
    const drawn = lines.map(({ points, label, colour, dash, isStepped }) =>
      draw("path", { class: colour === undefined ? "oracle" : `k${colour % 8}`, d: path(points, isStepped), "stroke-dasharray": dashes[dash % 8] ?? "" }, draw("title", {}, label)),
    );
    chart.replaceChildren(area, ...grid, ...below, draw("text", { x: 6, y: bottom + 20 }, "update"), ...drawn);
  };

  const losses = ({ exact, spread, lines }) => {
    const isApart = byId("losses-distance").checked;
    const distance = (points, base) =>
      points.map((value, step) => (isNumber(value) && isNumber(base.exact[step]) && base.spread[step] > 0 ? (value - base.exact[step]) / base.spread[step] : null));
    const runs = lines.map(({ run, points, own }) => ({
      ...curves.runs[run],
      points: isApart ? distance(points, own ?? { exact, spread }) : points,
    }));
    const edges = [-1, 1].map((sign) => spread.map((wide, step) => (isApart ? sign : isNumber(wide) && isNumber(exact[step]) ? exact[step] + sign * wide : null)));
    const values = runs.flatMap(({ points }) => points).filter(isNumber);
    const least = values.reduce((a, b) => Math.min(a, b), Infinity);
    const isLogarithmic = !isApart && least > 0 && values.some((value) => value > 50 * least);
    const oracle = { points: isApart ? exact.map(() => 0) : exact, label: "oracle" };
    plot(byId("losses-chart"), [oracle, ...runs], edges, isLogarithmic);
  };

  const scales = ({ lines }) =>
    plot(byId("scales-chart"), lines.map(({ run, points }) => ({ ...curves.runs[run], points, isStepped: true })), [], true);

  for (const [id, entries, shown] of [["losses", curves.losses, losses], ["scales", curves.scales, scales]]) {
    if (!entries.length) continue;
    const update = () => shown(entries[Number(byId(`${id}-choice`).value)]);
    byId(id).addEventListener("change", update);
    update();
  }
