// Who uses the page, and what that person may do.
//
//   session()               {required, authenticated, subject, role, queues}; asked for once, until forget()
//   forget()                after login and logout
//   may(role)               whether the person has this role ("read-only", "read-write", "admin") or a higher one
//   guard(control, role)    disables a button or input that the person may not use, and says why in its title.
//                           Answers the control. (The server decides; this only saves a click.)

import { get } from "./api.js";

const ROLES = ["read-only", "read-write", "admin"];
const EVERYBODY = { required: false, authenticated: true, subject: "", role: "admin", queues: ["*"] };

let asked = null;
let known = EVERYBODY;

export function session() {
  asked ??= ask();
  return asked;
}

export function forget() {
  asked = null;
}

export function may(role) {
  return ROLES.indexOf(known.role) >= ROLES.indexOf(role);
}

export function guard(control, role) {
  if (may(role)) return control;
  control.disabled = true;
  control.title = `Needs the role ${role}; you are ${known.role}.`;
  return control;
}

async function ask() {
  try {
    known = await get("/api/v1/session");
  } catch (error) {
    if (error.status !== 404) asked = null;
    known = EVERYBODY;
  }
  return known;
}
