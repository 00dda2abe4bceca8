//! Charts of bars in groups, as SVG and PNG, drawn by the same code.
//!
//! A viewer sets the text of an SVG in a font of its own. For PNG the font is part of the program,
//! so that a chart looks the same on a machine without fonts.
#![forbid(unsafe_code)]

use std::error::Error;
use std::fs;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use anyhow::{Context, Result, anyhow};
use plotters::coord::Shift;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::{FontStyle, register_font};
use serde::{Deserialize, Serialize};

/// Width and height in pixels.
const SIZE: (u32, u32) = (1200, 640);
const FONT: &str = "sans-serif";
const TEXT: i32 = 16;

/// Colours that everybody can tell apart (Okabe, Ito, Color Universal Design, 2008).
const COLOURS: [RGBColor; 7] = [
    RGBColor(0x99, 0x99, 0x99),
    RGBColor(0xE6, 0x9F, 0x00),
    RGBColor(0x56, 0xB4, 0xE9),
    RGBColor(0x00, 0x9E, 0x73),
    RGBColor(0x00, 0x72, 0xB2),
    RGBColor(0xCC, 0x79, 0xA7),
    RGBColor(0xF0, 0xE4, 0x42),
];
/// Colours of lines across.
const LINES: [RGBColor; 2] = [RGBColor(0xD5, 0x5E, 0x00), BLACK];

/// Colour of bands.
const BAND: RGBColor = RGBColor(0xD5, 0x5E, 0x00);

/// Bars in groups.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Chart {
    /// The name of its file, without the extension.
    pub name: String,
    /// What it shows.
    pub title: String,
    /// The unit of its values.
    pub unit: String,
    /// Names of groups.
    pub groups: Vec<String>,
    /// The series: each has a bar in each group.
    pub series: Vec<Series>,
    /// Lines across all groups: name and value.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lines: Vec<(String, f64)>,
    /// Bands across all groups.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bands: Vec<Band>,
}

/// The space between two values.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Band {
    /// Its name in the legend.
    pub name: String,
    /// The lower value; `None`: the lower end of the axis.
    pub low: Option<f64>,
    /// The upper value; `None`: the upper end of the axis.
    pub high: Option<f64>,
}

/// The bars of one colour.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// Its name in the legend.
    pub name: String,
    /// A value per group; `None` where there is no bar.
    pub values: Vec<Option<f64>>,
    /// Half of each value's interval; `None` where it has none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub halves: Vec<Option<f64>>,
    /// The value with which each bar is compared, as a mark on the bar.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub marks: Vec<Option<f64>>,
}

/// Writes each chart into a directory, as SVG and as PNG, and returns the paths.
///
/// # Errors
/// A file cannot be written, or a chart not be drawn.
pub fn write_all(charts: &[Chart], dir: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for chart in charts {
        for (suffix, write) in [
            ("svg", svg as fn(&Chart, &Path) -> Result<()>),
            ("png", png),
        ] {
            let path = dir.join(format!("{}.{suffix}", chart.name));
            write(chart, &path).with_context(|| path.display().to_string())?;
            files.push(path);
        }
    }
    Ok(files)
}

fn svg(chart: &Chart, path: &Path) -> Result<()> {
    Ok(fs::write(path, chart.svg()?)?)
}

impl Chart {
    /// Draws the chart as SVG.
    ///
    /// # Errors
    /// The drawing failed.
    pub fn svg(&self) -> Result<String> {
        let mut text = String::new();
        let area = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
        draw(self, area)?;
        Ok(text)
    }

    /// The largest value that is shown.
    fn most(&self) -> f64 {
        let bars = self.series.iter().flat_map(|series| {
            let half = |n: usize| series.halves.get(n).copied().flatten().unwrap_or(0.0);
            let values = series.values.iter().enumerate();
            let ends = values.filter_map(move |(n, value)| Some((*value)? + half(n)));
            ends.chain(series.marks.iter().flatten().copied())
        });
        let lines = self.lines.iter().map(|line| line.1);
        let bands = self.bands.iter().flat_map(|band| [band.low, band.high]);
        let finite = bars.chain(lines).chain(bands.flatten());
        finite.filter(|value| value.is_finite()).fold(0.0, f64::max)
    }

    /// The upper end of the axis. The legend stands above the bars.
    fn top(&self) -> f64 {
        let legend = 0.05 * (self.series.len() + self.lines.len() + self.bands.len()) as f64;
        let most = self.most();
        if most > 0.0 {
            most * (1.08 + legend)
        } else {
            1.0
        }
    }

    /// The width of a bar, with the space behind it. A group has width 1.
    fn bar_width(&self) -> f64 {
        0.84 / self.series.len().max(1) as f64
    }

    /// The middle of a bar.
    fn middle(&self, group: usize, series: usize) -> f64 {
        group as f64 + 0.08 + (series as f64 + 0.46) * self.bar_width()
    }

    /// How the names of groups are written: the size of their letters, and whether they stand
    /// upright.
    fn labels(&self) -> (i32, bool) {
        let longest = self.groups.iter().map(|g| g.len()).max().unwrap_or(0);
        match longest * self.groups.len() {
            0..120 => (TEXT, false),
            120..160 => (TEXT - 4, false),
            _ => (TEXT - 5, true),
        }
    }
}

fn png(chart: &Chart, path: &Path) -> Result<()> {
    let mut pixels = vec![0; (SIZE.0 * SIZE.1 * 3) as usize];
    draw(
        chart,
        BitMapBackend::with_buffer(&mut pixels, SIZE).into_drawing_area(),
    )?;
    let file = BufWriter::new(fs::File::create(path)?);
    let mut encoder = png::Encoder::new(file, SIZE.0, SIZE.1);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    let mut writer = encoder.write_header()?;
    writer.write_image_data(&pixels)?;
    Ok(writer.finish()?)
}

/// Registers the font, once.
fn font() -> Result<()> {
    static KNOWN: OnceLock<bool> = OnceLock::new();
    let register = || register_font(FONT, FontStyle::Normal, dejavu::sans::regular()).is_ok();
    if *KNOWN.get_or_init(register) {
        Ok(())
    } else {
        Err(anyhow!("the font cannot be read"))
    }
}

/// The axes of a chart, on which its parts are drawn.
type Axes<'a, DB> = ChartContext<'a, DB, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

fn failed<E: Error + Send + Sync>(error: DrawingAreaErrorKind<E>) -> anyhow::Error {
    anyhow!("drawing: {error}")
}

fn draw<DB: DrawingBackend>(chart: &Chart, area: DrawingArea<DB, Shift>) -> Result<()>
where
    DB::ErrorType: 'static,
{
    font()?;
    area.fill(&WHITE).map_err(failed)?;
    let mut axes = draw_axes(chart, &area)?;
    draw_bands(chart, &mut axes)?;
    for at in 0..chart.series.len() {
        draw_series(chart, at, &mut axes)?;
    }
    draw_marks(chart, &mut axes)?;
    draw_lines(chart, &mut axes)?;
    axes.configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.85))
        .border_style(BLACK.mix(0.3))
        .label_font((FONT, TEXT))
        .draw()
        .map_err(failed)?;
    area.present().map_err(failed)
}

/// Draws the title, the axes and the names of the groups.
fn draw_axes<'a, DB: DrawingBackend>(
    chart: &Chart,
    area: &'a DrawingArea<DB, Shift>,
) -> Result<Axes<'a, DB>>
where
    DB::ErrorType: 'static,
{
    let (size, is_upright) = chart.labels();
    let label = FontDesc::from((FONT, size));
    let (label, room) = if is_upright {
        let longest = chart.groups.iter().map(|g| g.len()).max().unwrap_or(0);
        let room = (longest as u32 * 7).clamp(44, SIZE.1 / 2);
        (label.transform(FontTransform::Rotate90), room)
    } else {
        (label, 44)
    };
    let title_size = if chart.title.len() > 110 {
        TEXT
    } else {
        TEXT + 4
    };
    let top = chart.top();
    let mut axes = ChartBuilder::on(area)
        .caption(&chart.title, (FONT, title_size))
        .margin(12)
        .x_label_area_size(room)
        .y_label_area_size(76)
        .build_cartesian_2d(0.0..chart.groups.len() as f64, 0.0..top)
        .map_err(failed)?;
    // The name of a group stands in its middle, where a tick of the axis is asked for.
    let name = |x: &f64| {
        let at = x.floor() as usize;
        if (x - x.floor() - 0.5).abs() < 1e-6 {
            chart.groups.get(at).cloned().unwrap_or_default()
        } else {
            String::new()
        }
    };
    axes.configure_mesh()
        .disable_x_mesh()
        .x_labels(2 * chart.groups.len() + 1)
        .x_label_formatter(&name)
        .y_label_formatter(&|y| number(*y, top))
        .light_line_style(BLACK.mix(0.06))
        .y_desc(&chart.unit)
        .x_label_style(label)
        .y_label_style((FONT, TEXT - 2))
        .axis_desc_style((FONT, TEXT))
        .draw()
        .map_err(failed)?;
    Ok(axes)
}

fn draw_bands<DB: DrawingBackend>(chart: &Chart, axes: &mut Axes<'_, DB>) -> Result<()>
where
    DB::ErrorType: 'static,
{
    let (right, top) = (chart.groups.len() as f64, chart.top());
    for band in &chart.bands {
        let (low, high) = (band.low.unwrap_or(0.0), band.high.unwrap_or(top));
        let style = BAND.mix(0.3).filled();
        let area = Rectangle::new([(0.0, low), (right, high.min(top))], style);
        axes.draw_series([area])
            .map_err(failed)?
            .label(&band.name)
            .legend(move |(x, y)| Rectangle::new([(x, y - 6), (x + 14, y + 6)], style));
    }
    Ok(())
}

/// Draws the bars of a series, and their intervals.
fn draw_series<DB: DrawingBackend>(chart: &Chart, at: usize, axes: &mut Axes<'_, DB>) -> Result<()>
where
    DB::ErrorType: 'static,
{
    let (series, width) = (&chart.series[at], chart.bar_width());
    let colour = COLOURS[at % COLOURS.len()];
    let bars = series
        .values
        .iter()
        .enumerate()
        .filter_map(|(group, value)| {
            let left = group as f64 + 0.08 + at as f64 * width;
            let corners = [(left, 0.0), (left + width * 0.92, (*value)?)];
            Some(Rectangle::new(corners, colour.filled()))
        });
    axes.draw_series(bars)
        .map_err(failed)?
        .label(&series.name)
        .legend(move |(x, y)| Rectangle::new([(x, y - 6), (x + 14, y + 6)], colour.filled()));
    let interval = series.halves.iter().zip(&series.values).enumerate();
    let interval = interval.filter_map(|(group, (half, value))| {
        let (half, value) = ((*half).filter(|half| *half > 0.0)?, (*value)?);
        let middle = chart.middle(group, at);
        let ends = [value - half, value + half].map(|y| (middle, y.max(0.0)));
        Some(PathElement::new(ends, BLACK.mix(0.6)))
    });
    axes.draw_series(interval).map_err(failed)?;
    Ok(())
}

/// Draws the values that bars are compared with.
fn draw_marks<DB: DrawingBackend>(chart: &Chart, axes: &mut Axes<'_, DB>) -> Result<()>
where
    DB::ErrorType: 'static,
{
    let marks = chart.series.iter().enumerate().flat_map(|(at, series)| {
        let marks = series.marks.iter().enumerate();
        marks.filter_map(move |(group, mark)| {
            let place = (chart.middle(group, at), (*mark)?);
            Some(TriangleMarker::new(place, 7, LINES[0].filled()))
        })
    });
    let marks: Vec<_> = marks.collect();
    if !marks.is_empty() {
        axes.draw_series(marks)
            .map_err(failed)?
            .label("the paper")
            .legend(|(x, y)| TriangleMarker::new((x + 7, y), 7, LINES[0].filled()));
    }
    Ok(())
}

fn draw_lines<DB: DrawingBackend>(chart: &Chart, axes: &mut Axes<'_, DB>) -> Result<()>
where
    DB::ErrorType: 'static,
{
    let (right, top) = (chart.groups.len() as f64, chart.top());
    for (at, (name, value)) in chart.lines.iter().enumerate() {
        let style = LINES[at % LINES.len()].stroke_width(2);
        axes.draw_series(LineSeries::new([(0.0, *value), (right, *value)], style))
            .map_err(failed)?
            .label(format!("{name}: {}", number(*value, top)))
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 14, y)], style));
    }
    Ok(())
}

/// A value on an axis that goes up to `top`.
fn number(value: f64, top: f64) -> String {
    match top {
        0.0..2.0 => format!("{value:.2}"),
        2.0..20.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_show_the_chart() {
        let chart = Chart {
            name: "bars".to_owned(),
            title: "Some bars".to_owned(),
            unit: "MiB/s".to_owned(),
            groups: ["one", "two"].map(str::to_owned).into(),
            series: vec![Series {
                name: "a".to_owned(),
                values: vec![Some(3.0), None],
                halves: vec![Some(0.5), None],
                marks: vec![None, Some(1.5)],
            }],
            lines: vec![("paper".to_owned(), 2.1)],
            bands: vec![Band {
                name: "as good".to_owned(),
                low: Some(3.4),
                high: None,
            }],
        };
        let dir = tempfile::tempdir().expect("a directory");
        let (vector, raster) = (dir.path().join("a.svg"), dir.path().join("a.png"));
        svg(&chart, &vector).expect("an SVG");
        png(&chart, &raster).expect("a PNG");
        let text = fs::read_to_string(vector).expect("text");
        for word in [
            "Some bars",
            "MiB/s",
            "one",
            "two",
            "paper: 2.1",
            "the paper",
            "as good",
        ] {
            assert!(text.contains(word), "{word}");
        }
        let file = std::io::BufReader::new(fs::File::open(raster).expect("a file"));
        let mut reader = png::Decoder::new(file).read_info().expect("a PNG");
        let mut pixels = vec![0; reader.output_buffer_size().expect("a size")];
        reader.next_frame(&mut pixels).expect("a frame");
        let is = |colour: RGBColor| {
            let (r, g, b) = colour.rgb();
            pixels
                .as_chunks::<3>()
                .0
                .iter()
                .filter(|p| **p == [r, g, b])
                .count()
        };
        // The bar fills more than a third of its group's half, up to its value; the second group
        // has no bar.
        assert!(is(COLOURS[0]) > (SIZE.0 * SIZE.1 / 8) as usize);
        assert!(is(LINES[0]) > SIZE.0 as usize / 2);
        assert_eq!(is(COLOURS[1]), 0);
    }
}
