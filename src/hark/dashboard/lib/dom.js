// Elements from data, safely: text is always text, never markup.
//
//   h(tag, props, ...children)      an HTML element; props: class, dataset, on: {event: listener}, attributes,
//                                   and as properties: value, checked, disabled, hidden. null, undefined, false: left out
//   svg(tag, attributes, ...children)   the same for SVG
//   fill(node, ...children)         replace the children of a node
//   icon(name)                      a small drawing beside a text
//   uid(prefix)                     an id that is not taken, for labels

const PROPERTIES = new Set(["value", "checked", "disabled", "hidden", "indeterminate", "selected"]);

export function h(tag, props, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "class") node.className = value;
    else if (name === "dataset") Object.assign(node.dataset, value);
    else if (name === "on") listen(node, value);
    else if (PROPERTIES.has(name)) node[name] = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  return add(node, children);
}

export function svg(tag, attributes, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value !== null && value !== undefined) node.setAttribute(name, value);
  }
  return add(node, children);
}

export function fill(node, ...children) {
  node.replaceChildren();
  return add(node, children);
}

function listen(node, listeners) {
  for (const [event, listener] of Object.entries(listeners)) node.addEventListener(event, listener);
}

function add(node, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : String(child));
  }
  return node;
}

// Lines on a grid of 16, drawn with the colour of the text.
const ICONS = {
  pause: "M5.5 3.5v9M10.5 3.5v9",
  play: "M5 3.2v9.6l7.5-4.8z",
  trash: "M3 4.5h10M6.5 4.5V3h3v1.5M4.5 4.5l.6 8.5h5.8l.6-8.5",
  plus: "M8 3v10M3 8h10",
  warning: "M8 2.5 14.3 13.5H1.7zM8 6.5v3.2M8 11.4v.6",
  check: "m3 8.5 3.2 3.2L13 4.8",
  close: "m4 4 8 8M12 4l-8 8",
  left: "m10 3.5-4.5 4.5 4.5 4.5",
  right: "m6 3.5 4.5 4.5L6 12.5",
  refresh: "M13 8a5 5 0 1 1-1.6-3.7M13 2.5v2.8h-2.8",
  copy: "M5.5 5.5h7v7h-7zM3.5 10.5v-7h7",
  search: "M7 2.8a4.2 4.2 0 1 1 0 8.4 4.2 4.2 0 0 1 0-8.4zM10.2 10.2l3.3 3.3",
  send: "m2.5 8 11-5-3.5 10.5-2.6-4.2zM7.4 9.3l6.1-6.3",
  clock: "M8 2.5a5.5 5.5 0 1 1 0 11 5.5 5.5 0 0 1 0-11zM8 5v3.2l2.2 1.4",
  menu: "M2.5 4.5h11M2.5 8h11M2.5 11.5h11",
};

export function icon(name) {
  return svg("svg", { class: "icon", viewBox: "0 0 16 16", "aria-hidden": "true" }, svg("path", { d: ICONS[name] }));
}

let ids = 0;

export function uid(prefix = "id") {
  ids += 1;
  return `${prefix}-${ids}`;
}
