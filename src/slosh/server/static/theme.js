// Light or dark, before the page is painted: what the person chose (kept in this browser), or what the system says.
// A classic script, because modules run after the first paint. theme-choice.js changes the choice.
(() => {
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const apply = () => {
    let chosen = null;
    try {
      chosen = localStorage.getItem("slosh-theme");
    } catch {
      // Storage may be forbidden: then the system decides.
    }
    const theme = chosen === "light" || chosen === "dark" ? chosen : system.matches ? "dark" : "light";
    document.documentElement.dataset.theme = theme;
    window.dispatchEvent(new Event("slosh-theme"));
  };
  system.addEventListener("change", apply);
  window.addEventListener("storage", apply);
  window.addEventListener("slosh-theme-choice", apply);
  apply();
})();
