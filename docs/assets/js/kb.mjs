// Small conveniences of a page. Without JavaScript the links below still lead to the right place.

function copyShareText(link) {
  const text = `${link.dataset.share} — ${link.href}`;
  return navigator.clipboard.writeText(text);
}

async function onClick(event) {
  const link = event.target.closest("a.kb-copy");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  const label = link.textContent;
  try {
    await copyShareText(link);
    link.textContent = "已复制";
  } catch {
    location.assign(link.href); // no clipboard (insecure origin): the short link itself can be copied from the address bar
    return;
  }
  setTimeout(() => (link.textContent = label), 1500);
}

document.addEventListener("click", onClick);
