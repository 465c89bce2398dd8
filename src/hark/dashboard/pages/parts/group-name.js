// Names of groups. Consumers that name no group share the default group, which has a name made by the server.
//
//   groupName(name)   for a table or a list        groupText(name)   within a sentence

import { h } from "../../lib/dom.js";

export const DEFAULT_GROUP = "__QUEUE_MODE__";

export function groupName(name) {
  return name === DEFAULT_GROUP ? h("span", { class: "soft", title: name }, "default group") : h("span", null, name);
}

export function groupText(name) {
  return name === DEFAULT_GROUP ? "the default group" : name;
}
