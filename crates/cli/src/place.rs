//! Where a file is: on this machine, or in an image that is not mounted (`image.img:/path`).

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::part;
use crate::shown::shown;

/// A place given on the command line.
///
/// An argument is a place in an image if it has a `:` at its end or before a `/`, and what stands
/// before the first such colon is an existing file that is not a directory. Everything else is a
/// path on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// A path on this machine.
    Host(PathBuf),
    /// A path in an image; it begins with a slash.
    Image { image: PathBuf, path: Vec<u8> },
}

impl Place {
    fn new(text: &OsStr) -> Self {
        let bytes = text.as_bytes();
        for (at, byte) in bytes.iter().enumerate() {
            if *byte != b':' || at == 0 || !matches!(bytes.get(at + 1), None | Some(b'/')) {
                continue;
            }
            let image = Path::new(OsStr::from_bytes(&bytes[..at]));
            if part::file_of(image).metadata().is_ok_and(|m| !m.is_dir()) {
                let path = if at + 1 == bytes.len() {
                    b"/".to_vec()
                } else {
                    bytes[at + 1..].to_vec()
                };
                return Self::Image {
                    image: image.to_owned(),
                    path,
                };
            }
        }
        Self::Host(PathBuf::from(text))
    }

    /// Returns how a path in an image is written on the command line.
    pub(crate) fn written(image: &Path, path: &[u8]) -> OsString {
        let mut text = image.as_os_str().to_owned();
        text.push(":");
        text.push(OsStr::from_bytes(path));
        text
    }

    /// Returns the place in an image; a bare path means the root of that image. For commands that
    /// work only on images.
    pub(crate) fn in_image(&self) -> (&Path, &[u8]) {
        match self {
            Self::Host(image) => (image, b"/"),
            Self::Image { image, path } => (image, path),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host(path) => write!(f, "{}", path.display()),
            Self::Image { image, path } => {
                write!(f, "{}:{}", image.display(), shown(path))
            }
        }
    }
}

impl From<OsString> for Place {
    fn from(text: OsString) -> Self {
        Self::new(&text)
    }
}

/// Joins `dir/name` without doubling the slash.
pub(crate) fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    let mut path = dir.to_vec();
    if !path.ends_with(b"/") {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    path
}

/// Returns the last part of a path: `/a/b/` ends in `b`, `/a/.` in `.`, the root in nothing.
pub(crate) fn last_part(path: &[u8]) -> &[u8] {
    let end = path.iter().rposition(|b| *b != b'/').map_or(0, |at| at + 1);
    let begin = path[..end]
        .iter()
        .rposition(|b| *b == b'/')
        .map_or(0, |at| at + 1);
    &path[begin..end]
}

/// Splits a path before its last part: `/a/b/` is (`/a/`, `b`). Returns `None` for the root, and
/// for a path that ends in `.` or `..`, which are no names in a directory.
pub(crate) fn split_last(path: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
    let name = last_part(path);
    if matches!(name, b"" | b"." | b"..") {
        return None;
    }
    let end = path.iter().rposition(|b| *b != b'/')? + 1;
    Some((path[..end - name.len()].to_vec(), name.to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_in_an_image_needs_the_image() {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("a:b.img");
        std::fs::write(&image, b"").unwrap();
        let text = |tail: &str| {
            let mut text = image.clone().into_os_string();
            text.push(tail);
            text
        };
        let at = |path: &[u8]| Place::Image {
            image: image.clone(),
            path: path.to_vec(),
        };
        assert_eq!(Place::from(text(":/x/y:/z")), at(b"/x/y:/z"));
        assert_eq!(Place::from(text(":")), at(b"/"));
        assert_eq!(Place::from(text("")), Place::Host(image.clone()));
        assert_eq!(
            Place::from(OsString::from("/nowhere:/x")),
            Place::Host("/nowhere:/x".into())
        );
        assert_eq!(Place::from(text(":x")), Place::Host(text(":x").into()));
    }

    #[test]
    fn paths_are_taken_apart_and_put_together() {
        assert_eq!(split_last(b"/a/b/"), Some((b"/a/".to_vec(), b"b".to_vec())));
        assert_eq!(split_last(b"/a"), Some((b"/".to_vec(), b"a".to_vec())));
        assert_eq!(split_last(b"a//"), Some((b"".to_vec(), b"a".to_vec())));
        assert_eq!(split_last(b"/a/."), None);
        assert_eq!(split_last(b"/"), None);
        assert_eq!(split_last(b"/a/.."), None);
        assert_eq!(join(b"/", b"a"), b"/a");
        assert_eq!(join(b"/a", b"b"), b"/a/b");
    }
}
