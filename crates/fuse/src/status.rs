//! What `/proc/PID/status` says of a process (proc(5)).

use std::fmt::Display;
use std::string::FromUtf8Error;

/// The lines of the file.
pub(crate) struct Status(String);

impl Status {
    /// Reads that of a process or thread; `None` if there is none.
    pub(crate) fn of(process: impl Display) -> Option<Self> {
        let lines = std::fs::read(format!("/proc/{process}/status")).ok()?;
        // The name in it need not be UTF-8.
        let lines = String::from_utf8(lines);
        let repaired = |e: FromUtf8Error| String::from_utf8_lossy(e.as_bytes()).into_owned();
        Some(Self(lines.unwrap_or_else(repaired)))
    }

    /// Returns what stands behind `name:`.
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        let mut fields = self.0.lines().filter_map(|line| line.split_once(':'));
        let (_, value) = fields.find(|(found, _)| *found == name)?;
        Some(value.trim())
    }
}

#[cfg(test)]
impl From<&str> for Status {
    fn from(lines: &str) -> Self {
        Self(lines.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::Status;

    #[test]
    fn the_own_number_is_there() {
        let own = Status::of("self").unwrap();
        let pid = std::process::id().to_string();
        assert_eq!(own.field("Tgid"), Some(&*pid));
        assert_eq!(own.field("Tgi"), None);
        assert!(own.field("Groups").is_some());
        assert!(Status::of(0).is_none());
    }
}
