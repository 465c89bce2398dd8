// Runs before the first paint, so that the page does not flash in the wrong colours. See lib/theme.js for the switch.
try {
  const theme = localStorage.getItem("hark-theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch {
  // Storage may be forbidden; then the colours are those of the system.
}
