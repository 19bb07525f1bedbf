"use strict";
(() => {
  const EACH_MS = 5000;
  const lost = document.getElementById("lost");

  // Change only what differs, so that focus, selection and the place on the page stay.
  const sync = (old, now) => {
    if (old.isEqualNode(now)) return;
    if (old.nodeName !== now.nodeName) return old.replaceWith(now);
    if (old.nodeType !== Node.ELEMENT_NODE) return void (old.nodeValue = now.nodeValue);
    for (const { name } of [...old.attributes]) if (!now.hasAttribute(name)) old.removeAttribute(name);
    for (const { name, value } of now.attributes) old.setAttribute(name, value);
    const before = [...old.childNodes], after = [...now.childNodes];
    after.forEach((each, index) => before[index] ? sync(before[index], each) : old.append(each));
    before.slice(after.length).forEach((each) => each.remove());
  };

  const refresh = async () => {
    try {
      const page = new DOMParser().parseFromString(await (await fetch(location.href)).text(), "text/html");
      sync(document.getElementById("live"), page.getElementById("live"));
      lost.hidden = true;
    } catch {
      lost.hidden = false;
    }
  };

  // A page that nobody looks at asks for nothing.
  setInterval(() => document.hidden || refresh(), EACH_MS);
  document.addEventListener("visibilitychange", () => document.hidden || refresh());
})();
