// The current user and the role of that user.
//
//   session()               {required, authenticated, subject, role, queues}; requested once, until forget()
//   forget()                after login and logout
//   may(role)               whether the user has this role ("read-only", "read-write", "admin") or a higher one
//   guard(control, role)    disables a button or input that the user has no role for, and explains it in the title.
//                           Returns the control. (The server decides; this only saves a click.)

import { get } from "./api.js";

const ROLES = ["read-only", "read-write", "admin"];
const WITHOUT_LOGIN = { required: false, authenticated: true, subject: "", role: "admin", queues: ["*"] };

let request = null;
let known = WITHOUT_LOGIN;

export function session() {
  request ??= ask();
  return request;
}

export function forget() {
  request = null;
}

export function may(role) {
  return ROLES.indexOf(known.role) >= ROLES.indexOf(role);
}

export function guard(control, role) {
  if (may(role)) return control;
  control.disabled = true;
  control.title = `This requires the role ${role}. Your role is ${known.role}.`;
  return control;
}

async function ask() {
  try {
    known = await get("/api/v1/session");
  } catch (error) {
    if (error.status !== 404) request = null;
    known = WITHOUT_LOGIN;
  }
  return known;
}
