// Answers what is wrong with the page for those who use a keyboard, a screen reader or a small screen, or see badly.
() => {
  const problems = [];
  const shown = (node) => node.checkVisibility({ visibilityProperty: true, opacityProperty: true });
  const announced = (node) => node.outerHTML.replace(/\s+/g, " ").slice(0, 160);

  // A modal question makes the rest of the page inert: then only the question counts.
  const open = document.querySelector("dialog:modal");
  const root = open ?? document;
  const all = [...root.querySelectorAll("*")].filter(shown);

  const USABLE = "a[href], button, input, select, textarea, summary, [tabindex]:not([tabindex='-1'])";
  const usable = all.filter((node) => node.matches(USABLE));

  const nameOf = (node) => {
    const byId = (node.getAttribute("aria-labelledby") ?? "").split(/\s+/).map((id) => document.getElementById(id)?.textContent);
    const labels = [...(node.labels ?? [])].map((label) => label.textContent);
    const own = node.matches("input, select, textarea") ? "" : node.textContent;
    return [node.getAttribute("aria-label"), ...byId, ...labels, own, node.title].join(" ").trim();
  };
  for (const node of usable) {
    if (!nameOf(node)) problems.push(`has no name: ${announced(node)}`);
    if (node.matches("a, button, input, select, textarea") && node.tabIndex < 0 && !node.disabled && !node.matches("[role=tab], [aria-hidden=true]"))
      problems.push(`is not reached by the Tab key: ${announced(node)}`);
  }

  for (const node of all) {
    const hand = getComputedStyle(node).cursor === "pointer";
    if (hand && !node.closest(`${USABLE}, label, [role=tab]`)) problems.push(`can be clicked but not reached by keyboard: ${announced(node)}`);
    if (node.matches("img") && !node.hasAttribute("alt")) problems.push(`has no alternative text: ${announced(node)}`);
  }

  const ids = [...document.querySelectorAll("[id]")].map((node) => node.id);
  for (const id of new Set(ids.filter((one, index) => ids.indexOf(one) !== index))) problems.push(`id ${id} is there twice`);

  const headings = document.querySelectorAll("h1");
  if ([...headings].filter(shown).length !== 1) problems.push(`has ${headings.length} main headings`);
  if (!document.documentElement.lang) problems.push("does not say its language");
  if (!document.title.trim()) problems.push("has no title");

  const page = document.documentElement;
  if (page.scrollWidth > page.clientWidth) {
    const wide = all.filter((node) => node.getBoundingClientRect().right > page.clientWidth + 1 && !inScrollBox(node));
    problems.push(`is wider than the window: ${wide.slice(0, 3).map(announced).join(" | ") || "?"}`);
  }

  // Contrast of text, as WCAG 2 counts it (AA).
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const colours = new Map();
  const rgba = (colour) => {
    if (!colours.has(colour)) {
      canvas.clearRect(0, 0, 1, 1);
      canvas.fillStyle = colour;
      canvas.fillRect(0, 0, 1, 1);
      const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
      colours.set(colour, [r, g, b, a / 255]);
    }
    return colours.get(colour);
  };
  const over = (top, under) => top.slice(0, 3).map((part, index) => part * top[3] + under[index] * (1 - top[3]));
  const light = (parts) => {
    const [r, g, b] = parts.map((part) => {
      const value = part / 255;
      return value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (node) => {
    const layers = [];
    for (let one = node; one; one = one.parentElement) {
      const colour = rgba(getComputedStyle(one).backgroundColor);
      layers.push(colour);
      if (colour[3] === 1) break;
    }
    return layers.reverse().reduce((under, top) => over(top, under), [255, 255, 255]);
  };
  for (const node of all) {
    const text = [...node.childNodes].filter((child) => child.nodeType === Node.TEXT_NODE).map((child) => child.data).join("").trim();
    if (!text || node.closest(":disabled, [aria-disabled=true], svg, option")) continue;
    const style = getComputedStyle(node);
    const ground = behind(node);
    const ink = over(rgba(style.color), ground);
    const [low, high] = [light(ink), light(ground)].sort((a, b) => a - b);
    const contrast = (high + 0.05) / (low + 0.05);
    const size = parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    if (contrast < (large ? 3 : 4.5)) problems.push(`has a contrast of ${contrast.toFixed(2)}: "${text.slice(0, 40)}" in ${announced(node).slice(0, 80)}`);
  }
  return [...new Set(problems)].slice(0, 20);

  function inScrollBox(node) {
    for (let one = node.parentElement; one && one !== document.body; one = one.parentElement) {
      if (["auto", "scroll", "hidden"].includes(getComputedStyle(one).overflowX)) return true;
    }
    return false;
  }
}
