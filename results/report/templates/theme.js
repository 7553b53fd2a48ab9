(() => {
  "use strict";
  try {
    const theme = localStorage.getItem("conformance-theme");
    if (theme === "dark" || theme === "light") document.documentElement.dataset.theme = theme;
  } catch {
    // Storage may be forbidden; the system's preference applies.
  }
})();
