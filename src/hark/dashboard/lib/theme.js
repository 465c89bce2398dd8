// Light, dark or the theme of the system, stored in the web browser. theme.js applies it before the first paint.
//
//   theme()           "system", "light" or "dark"
//   setTheme(name)    switches and keeps it

const KEY = "hark-theme";

export function theme() {
  return document.documentElement.dataset.theme ?? "system";
}

export function setTheme(name) {
  if (name === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  try {
    if (name === "system") localStorage.removeItem(KEY);
    else localStorage.setItem(KEY, name);
  } catch {
    // Storage can be disabled; then the choice lasts until the tab is closed.
  }
}
