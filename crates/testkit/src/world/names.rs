//! A few names, of which every path is made, so that operations meet.

/// A name of 255 bytes, the longest there is.
pub const LONGEST: &str = "\
    nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn\
    nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn\
    nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn";

/// Ordinary names.
pub const NAMES: [&str; 6] = ["a", "b", "c", "d", "file-with-a-name", LONGEST];

/// Targets of symbolic links: short (kept in the inode), climbing, dangling, circular, and long (in
/// a block of its own).
pub const TARGETS: [&str; 8] = [
    "a",
    "b",
    "../a",
    "../b",
    "a/b",
    "nowhere/at/all",
    "./c",
    "././././././././././././././././././././././././././././././././././././././././././d",
];

/// Extended attributes.
pub const XATTRS: [&str; 7] = [
    "user.one",
    "user.two",
    "user.a-rather-long-name-of-an-attribute",
    "trusted.one",
    "trusted.two",
    "security.one",
    "user.",
];

#[cfg(test)]
mod tests {
    #[test]
    fn the_longest_name_is_as_long_as_names_get() {
        assert_eq!(super::LONGEST.len(), 255);
    }
}
