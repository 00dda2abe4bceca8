//! FORMAT.md says what the code does: its tables are the layouts that the codecs use.

use stetfs_format::LAYOUTS;

const FORMAT_MD: &str = include_str!("../../../FORMAT.md");

/// The rows `| 0x.. | size | `name` | ...` below the heading `## name`.
fn rows(heading: &str) -> Vec<(usize, usize, String)> {
    let start = FORMAT_MD
        .find(&format!("\n## {heading}\n"))
        .unwrap_or_else(|| panic!("FORMAT.md has no section {heading:?}"));
    let section = &FORMAT_MD[start + 4..];
    let section = &section[..section.find("\n## ").unwrap_or(section.len())];
    section
        .lines()
        .filter_map(|line| {
            let mut cells = line.strip_prefix("| 0x")?.split(" | ");
            let offset = usize::from_str_radix(cells.next()?.trim(), 16).ok()?;
            let size = cells.next()?.trim().parse().ok()?;
            let name = cells.next()?.trim().trim_matches('`').to_owned();
            let meaning = cells.next()?.trim_end_matches('|').trim();
            assert!(!meaning.is_empty(), "{heading}: {name} has no meaning");
            Some((offset, size, name))
        })
        .collect()
}

#[test]
fn tables_are_the_layouts() {
    for layout in LAYOUTS {
        let code: Vec<_> = layout
            .fields
            .iter()
            .map(|field| (field.offset, field.size, field.name.to_owned()))
            .collect();
        assert_eq!(rows(layout.name), code, "table {:?}", layout.name);
    }
}

#[test]
fn no_table_is_without_code() {
    let tables = FORMAT_MD
        .matches("\n| offset | size | name | meaning |\n")
        .count();
    assert_eq!(tables, LAYOUTS.len());
}
