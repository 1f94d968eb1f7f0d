for (const place of document.querySelectorAll(".figure")) {
  const figure = JSON.parse(place.querySelector("script").textContent);
  place.replaceChildren();
  Plotly.newPlot(place, figure.data, figure.layout, { responsive: true, displayModeBar: false });
  if (place.dataset.name !== "history") continue;
  place.on("plotly_click", (event) => {
    const trial = document.getElementById("t" + (event.points[0].x - place.dataset.first));
    if (!trial) return;
    trial.open = true;
    trial.scrollIntoView({ behavior: "smooth", block: "center" });
  });
}
