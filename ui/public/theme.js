// Runs before the first paint, so that the page does not flash in the other theme.
(function () {
  var chosen = "system";
  try {
    chosen = JSON.parse(localStorage.getItem("hourbell.settings") || "{}").theme || "system";
  } catch (error) {
    // Storage is disabled or holds something else: the theme of the system applies.
  }
  var dark = chosen === "dark" || (chosen !== "light" && matchMedia("(prefers-color-scheme: dark)").matches);
  document.documentElement.dataset.theme = dark ? "dark" : "light";
})();
