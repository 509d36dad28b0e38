"""Line charts as SVG, without any library: panels side by side, on linear or logarithmic axes."""

import math
from html import escape

WIDTH, HEIGHT = 460, 330  # of a panel
LEFT, RIGHT, TOP, BOTTOM = 66, 14, 34, 46
COLOURS = ("#1b6ca8", "#c8553d", "#5b8c5a", "#8d6a9f", "#b8860b", "#555555")


class Axis:
    """From values to positions between two ends."""

    def __init__(self, values, start, end, log=False):
        self.log = log
        low, high = min(values), max(values)
        if log:
            low, high = math.log10(low), math.log10(high)
        pad = (high - low or 1) * 0.05
        self.low, self.high, self.start, self.end = low - pad, high + pad, start, end

    def __call__(self, value):
        at = math.log10(value) if self.log else value
        return self.start + (at - self.low) / (self.high - self.low) * (self.end - self.start)

    def ticks(self):
        if self.log:
            found = [10.0**power for power in range(math.ceil(self.low), math.floor(self.high) + 1)]
            if len(found) > 1:
                return found
            return [m * 10.0**power for power in range(math.floor(self.low), math.ceil(self.high) + 1)
                    for m in (1, 2, 5) if self.low <= math.log10(m * 10.0**power) <= self.high]
        step = 10.0**math.floor(math.log10((self.high - self.low) / 2))
        while (self.high - self.low) / step > 7:
            step *= 2
        return [i * step for i in range(math.ceil(self.low / step), math.floor(self.high / step) + 1)]


def text(x, y, words, anchor="middle", size=11, more=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}"{more}>{escape(words)}</text>'


def panel(title, x_label, y_label, series, log=False, x_ticks=None, y_text="{:g}".format):
    """A chart of series: dicts with label, x, y, and if wanted colour (a number), dash and marks (True).

    `log` is for both axes."""
    x = Axis([v for s in series for v in s["x"]], LEFT, WIDTH - RIGHT, log)
    y = Axis([v for s in series for v in s["y"]], HEIGHT - BOTTOM, TOP, log)
    out = [text(WIDTH / 2, 20, title, size=13)]
    for value in x_ticks or x.ticks():
        out.append(f'<path d="M{x(value):.1f} {TOP}V{HEIGHT - BOTTOM}" stroke="#e4e4e4"/>')
        out.append(text(x(value), HEIGHT - BOTTOM + 16, f"{value:g}"))
    for value in y.ticks():
        out.append(f'<path d="M{LEFT} {y(value):.1f}H{WIDTH - RIGHT}" stroke="#e4e4e4"/>')
        out.append(text(LEFT - 6, y(value) + 4, y_text(value), "end"))
    out.append(f'<path d="M{LEFT} {TOP}V{HEIGHT - BOTTOM}H{WIDTH - RIGHT}" fill="none" stroke="#333"/>')
    out.append(text(WIDTH / 2, HEIGHT - 10, x_label))
    middle = (TOP + HEIGHT - BOTTOM) / 2
    out.append(text(14, middle, y_label, more=f' transform="rotate(-90 14 {middle})"'))
    for number, one in enumerate(series):
        colour = COLOURS[one.get("colour", number) % len(COLOURS)]
        points = [(x(a), y(b)) for a, b in zip(one["x"], one["y"])]
        dash = f' stroke-dasharray="{one["dash"]}"' if one.get("dash") else ""
        path = "L".join(f"{a:.1f} {b:.1f}" for a, b in points)
        out.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="1.6"{dash}/>')
        if one.get("marks"):
            out += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="2.6" fill="{colour}"/>' for a, b in points]
    return "\n".join(out), [(COLOURS[s.get("colour", i) % len(COLOURS)], s.get("dash"), s["label"])
                            for i, s in enumerate(series)]


def page(panels):
    """The text of an SVG file with panels side by side over one legend."""
    legend = []
    for _, entries in panels:
        legend += [entry for entry in entries if entry not in legend]
    width = WIDTH * len(panels)
    widest = 44 + 5.6 * max(len(label) for _, _, label in legend)  # a stroke and about so much for each letter
    per_row = max(1, min(2 * len(panels), int((width - LEFT) / widest)))
    height = HEIGHT + 18 * math.ceil(len(legend) / per_row) + 8
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
           f'viewBox="0 0 {width} {height}" font-family="sans-serif" fill="#222">',
           f'<rect width="{width}" height="{height}" fill="#fff"/>']
    for number, (body, _) in enumerate(panels):
        out.append(f'<g transform="translate({number * WIDTH} 0)">\n{body}\n</g>')
    for number, (colour, dash, label) in enumerate(legend):
        x, y = LEFT + number % per_row * (width - LEFT) / per_row, HEIGHT + 8 + 18 * (number // per_row)
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        out.append(f'<path d="M{x:.1f} {y}h26" stroke="{colour}" stroke-width="2"{dashes}/>')
        out.append(text(x + 32, y + 4, label, "start"))
    return "\n".join(out) + "\n</svg>\n"
