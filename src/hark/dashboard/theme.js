// Runs before the first paint, so that the page does not flash in the wrong colours. lib/theme.js switches themes.
try {
  const theme = localStorage.getItem("hark-theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch {
  // Storage can be disabled; then the theme of the system applies.
}
