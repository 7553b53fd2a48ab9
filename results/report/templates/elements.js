  const byId = (id) => document.getElementById(id);
  let parsed;
  /** The tests behind the cells, once `unpacked`. */
  const data = () => parsed;

  /** The document with verdicts and checks in place of their numbers: it stores equal ones once. */
  const whole = ({ checks, verdicts, ...rest }) => {
    for (const verdict of verdicts) verdict[9] = verdict[9].map((place) => checks[place]);
    const placed = ([place, seconds]) => [...verdicts[place].slice(0, 8), seconds, ...verdicts[place].slice(8)];
    const cells = rest.cells.map(([clause, run, listed]) => [clause, run, listed.map(placed)]);
    return { ...rest, cells };
  };

  const tooOld = typeof DecompressionStream === "undefined";
  byId("too-old").hidden = !tooOld;

  const unpack = async () => {
    const packed = Uint8Array.from(atob(byId("cells-data").textContent), (character) => character.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    parsed = whole(await new Response(stream).json());
  };
  let unpacking;
  /** Calls `work` when the tests are unpacked: at once, or after the first call for them; most readers need none. */
  const unpacked = (work) => {
    if (parsed) work();
    else (unpacking ??= unpack()).then(work);
  };

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
      // The choice is not saved.
    }
    tellTheme();
  });
  preferred.addEventListener("change", tellTheme);
  button.hidden = false;
  tellTheme();

  // ------------------------------------------------------------ the clipboard

  /** Copies a text, or selects the element that shows it; returns whether it was copied. */
  const copy = async (text, shown) => {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      if (shown instanceof HTMLTextAreaElement) {
        shown.focus();
        shown.select();
      } else {
        getSelection().selectAllChildren(shown);
      }
      return document.execCommand("copy");
    }
  };
