const tip = document.getElementById("tip");
document.addEventListener("mousemove", (event) => {
  const token = event.target.closest("[data-t]");
  tip.style.display = token ? "block" : "none";
  if (!token) return;
  tip.textContent = token.dataset.t;
  tip.style.left = Math.max(4, Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8)) + "px";
  tip.style.top = Math.max(4, event.clientY + 18 + tip.offsetHeight > innerHeight ? event.clientY - tip.offsetHeight - 10 : event.clientY + 18) + "px";
});
