// What a reader who sees little, or uses no mouse, would stumble over. Evaluated in the page.
({
  // Controls without a name.
  nameless: () => [...document.querySelectorAll("button, a, select, input, textarea, figure")]
    .filter((one) => one.offsetParent !== null)
    .filter((one) => !one.textContent.trim() && !one.getAttribute("aria-label") && !one.labels?.length)
    .map((one) => one.outerHTML),

  // Texts whose contrast with what is behind them is below WCAG 2's AA: 4.5, or 3 where large.
  faint: () => {
    const light = (rgb) => {
      const [r, g, b] = rgb.map((c) => c / 255).map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
      return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const parse = (text) => (text.match(/[\d.]+/g) ?? []).map(Number);
    const behind = (element) => {
      for (let at = element; at; at = at.parentElement) {
        const found = parse(getComputedStyle(at).backgroundColor);
        if (found.length === 3 || found[3] === 1) return found;
      }
      return [255, 255, 255];
    };
    const faint = [];
    for (const element of document.querySelectorAll("main *, header *")) {
      const own = [...element.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.data.trim());
      if (!own || element.offsetParent === null || element.closest(".visually-hidden, :disabled")) continue;
      const style = getComputedStyle(element);
      const [a, b] = [parse(style.color), behind(element)].map((rgb) => light(rgb.slice(0, 3)));
      const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
      const size = parseFloat(style.fontSize);
      const isLarge = size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
      if (contrast < (isLarge ? 3 : 4.5)) faint.push([element.textContent, contrast]);
    }
    return faint;
  },
})
