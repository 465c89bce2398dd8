// How groups are called: that of consumers who name none has a name that nobody chose.

import { h } from "../../lib/dom.js";

export const DEFAULT_GROUP = "__QUEUE_MODE__";

export function groupName(name) {
  return name === DEFAULT_GROUP ? h("span", { class: "soft", title: name }, "default") : h("span", null, name);
}

export function groupText(name) {
  return name === DEFAULT_GROUP ? "the default group" : name;
}
