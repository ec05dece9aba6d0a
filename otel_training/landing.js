// Without scripts the page is as good, only not live.
setInterval(async () => {
  if (document.hidden) return;
  const stale = document.getElementById("stale");
  try {
    const reply = await fetch(location.href, { cache: "no-store" });
    if (!reply.ok) return;
    const fresh = new DOMParser().parseFromString(await reply.text(), "text/html");
    document.getElementById("now").replaceWith(fresh.getElementById("now"));
    document.title = fresh.title;
    stale.classList.remove("shown");
  } catch {
    stale.classList.add("shown");
  }
}, 5000);
