//! The summary of a ground as a picture: a square for each system, medium and workload.

use std::fmt::Write as _;

use anyhow::Result;

use super::escape::text;
use crate::cell::Mean;
use crate::ground::sheet::{Sheet, short};

const LEFT: usize = 210;
const COLUMN: usize = 92;
const ROW: usize = 17;
const HEAD: usize = 56;
/// Space between media, in pixels.
const GAP: usize = 8;

/// Draws the picture (SVG): a number as a multiple of the baseline's.
///
/// # Errors
/// There is no such number.
pub fn picture(sheet: &Sheet, number: &str) -> Result<String> {
    let (jobs, systems) = (sheet.workloads.len(), sheet.systems.len());
    let height = HEAD + sheet.media.len() * ((jobs + 1) * ROW + GAP);
    let width = LEFT + systems * COLUMN + 8;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         width=\"{width}\" height=\"{height}\" font-family=\"sans-serif\" font-size=\"11\" \
         role=\"img\" aria-label=\"summary\">\n"
    );
    for (n, system) in sheet.systems.iter().enumerate() {
        let x = LEFT + n * COLUMN + COLUMN / 2;
        let (scheme, mode) = system
            .name
            .split_once(":data=")
            .unwrap_or((&system.name, ""));
        for (line, word) in [(1, scheme), (2, mode)] {
            writeln!(
                svg,
                "<text x=\"{x}\" y=\"{}\" text-anchor=\"middle\" fill=\"#888\">{}</text>",
                14 + line * 14,
                text(word)
            )?;
        }
    }
    for (m, medium) in sheet.media.iter().enumerate() {
        let top = HEAD + m * ((jobs + 1) * ROW + GAP);
        label(&mut svg, 4, top, &medium.name)?;
        let mut logarithms = vec![Vec::new(); systems];
        for (w, job) in sheet.workloads.iter().enumerate() {
            let y = top + w * ROW;
            label(&mut svg, 110, y, &job.name)?;
            for square in sheet.row(m, w) {
                let place = (LEFT + square.system * COLUMN, y);
                let title = format!(
                    "{}, {}, {}",
                    sheet.systems[square.system].name, medium.name, job.name
                );
                match (sheet.ratio(square, number), square.failed) {
                    (Some(ratio), _) => {
                        logarithms[square.system].push(ratio.mean.max(1e-9).ln());
                        let half = ratio.half.map(|half| format!(" \u{b1} {half:.3}"));
                        let title =
                            format!("{title}: {:.3}{}", ratio.mean, half.unwrap_or_default());
                        draw(&mut svg, place, ratio.mean, &title)?;
                    }
                    (None, true) => label(&mut svg, place.0 + 20, y, "FAILED")?,
                    (None, false) => {}
                }
            }
        }
        let y = top + jobs * ROW;
        label(&mut svg, 110, y, "geometric mean")?;
        for (n, all) in logarithms
            .iter()
            .enumerate()
            .filter(|(_, all)| !all.is_empty())
        {
            let mean = (all.iter().sum::<f64>() / all.len() as f64).exp();
            let title = format!("{}, {}: geometric mean", sheet.systems[n].name, medium.name);
            draw(&mut svg, (LEFT + n * COLUMN, y), mean, &title)?;
        }
    }
    svg.push_str("</svg>\n");
    Ok(svg)
}

fn label(svg: &mut String, x: usize, y: usize, words: &str) -> Result<()> {
    let (y, words) = (y + 13, text(words));
    Ok(writeln!(
        svg,
        "<text x=\"{x}\" y=\"{y}\" fill=\"#888\">{words}</text>"
    )?)
}

fn draw(svg: &mut String, (x, y): (usize, usize), ratio: f64, title: &str) -> Result<()> {
    let (width, height) = (COLUMN - 2, ROW - 1);
    Ok(writeln!(
        svg,
        "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" fill=\"{}\"><title>{}\
         </title></rect><text class=\"on\" x=\"{}\" y=\"{}\" text-anchor=\"middle\" \
         fill=\"#1b1b1b\" pointer-events=\"none\">{}</text>",
        colour(ratio),
        text(title),
        x + width / 2,
        y + 12,
        short(Mean {
            mean: ratio,
            half: None
        })
    )?)
}

/// Returns a colour: green at a tenth and below, white at 1, red at twice and above, by the
/// logarithm.
fn colour(ratio: f64) -> String {
    const GREEN: [f64; 3] = [102.0, 194.0, 130.0];
    const WHITE: [f64; 3] = [245.0, 245.0, 240.0];
    const RED: [f64; 3] = [240.0, 128.0, 100.0];
    let (to, share) = match ratio {
        ratio if ratio < 1.0 => (GREEN, -ratio.max(1e-9).log10()),
        ratio => (RED, ratio.log2()),
    };
    let share = share.clamp(0.0, 1.0);
    let mixed = [0, 1, 2].map(|n| (WHITE[n] + (to[n] - WHITE[n]) * share).round() as u8);
    format!("#{:02x}{:02x}{:02x}", mixed[0], mixed[1], mixed[2])
}

#[cfg(test)]
mod tests {
    use super::colour;

    #[test]
    fn colours_tell_faster_from_slower() {
        assert_eq!(colour(1.0), "#f5f5f0");
        assert_eq!(colour(0.1), colour(0.001));
        assert_eq!(colour(2.0), colour(50.0));
        assert_ne!(colour(0.5), colour(1.5));
    }
}
