//! Documents with generated tables. The text between a marker and [`END`] is replaced, so that
//! nobody copies numbers by hand.

use std::fmt::Write as _;

use anyhow::{Context, Result, ensure};

/// Ends generated text.
const END: &str = "<!-- end -->";

/// Returns the document with the text from `show` after each line that begins with `begin`. `show`
/// gets the rest of that line up to `-->`.
///
/// # Errors
/// Those of `show`; a marker without an end.
pub fn render(
    document: &str,
    begin: &str,
    mut show: impl FnMut(&str) -> Result<String>,
) -> Result<String> {
    let mut out = String::new();
    let mut lines = document.lines().enumerate();
    while let Some((n, line)) = lines.next() {
        out.push_str(line);
        out.push('\n');
        let Some(marker) = line.strip_prefix(begin) else {
            continue;
        };
        let shown = marker
            .strip_suffix(" -->")
            .context("it has no end")
            .and_then(&mut show);
        let shown = shown.with_context(|| format!("line {}: {line}", n + 1))?;
        write!(out, "\n{shown}\n{END}\n")?;
        ensure!(
            lines.any(|(_, line)| line == END),
            "line {}: no {END} follows",
            n + 1
        );
    }
    Ok(out)
}

/// Returns the first difference between a document and what it should be, for a test; `None` if
/// there is none.
pub fn difference(name: &str, is: &str, should: &str) -> Option<String> {
    let mut lines = is.lines().zip(should.lines()).enumerate();
    let line = lines.find(|(_, (is, should))| is != should);
    match line {
        Some((n, (is, should))) => {
            Some(format!("{name}, line {}: {is:?} and not {should:?}", n + 1))
        }
        None => {
            (is != should).then(|| format!("{name}: it is longer or shorter than it should be"))
        }
    }
}
