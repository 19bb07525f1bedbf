"use strict";
(() => {
  const lost = document.getElementById("lost");
  let source = null;

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

  const open = () => {
    source = new EventSource("live");
    source.onmessage = (event) => {
      const picture = new DOMParser().parseFromString(event.data, "text/html").getElementById("live");
      sync(document.getElementById("live"), picture);
      lost.hidden = true;
    };
    source.onerror = () => {
      lost.hidden = false;
      // Closed for good: the relay has no place for another stream, or is gone behind a proxy.
      if (source.readyState === EventSource.CLOSED) setTimeout(() => location.reload(), 5000);
    };
  };

  // A page that nobody looks at takes no place.
  document.addEventListener("visibilitychange", () => document.hidden ? source.close() : open());
  open();
})();
