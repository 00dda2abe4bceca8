//! One line for administrators: to the system log, or to the kernel's when there is none.

use std::io::Write;
use std::os::unix::net::UnixDatagram;

/// How bad an event is, in syslog's numbers (facility `daemon`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    /// Something is lost or stopped.
    Error = 3,
    /// Something needs attention.
    Warning = 4,
    /// For the record.
    Info = 6,
}

impl Severity {
    #[expect(clippy::as_conversions, reason = "the discriminant is syslog's number")]
    const fn number(self) -> u8 {
        self as u8
    }
}

const FACILITY_DAEMON: u8 = 3 << 3;

/// Writes a line to /dev/log, or to /dev/kmsg. If both fail, the line is lost.
pub fn write(severity: Severity, message: &str) {
    let priority = FACILITY_DAEMON | severity.number();
    let message = message.replace('\n', " ");
    let line = format!("<{priority}>stetfs[{}]: {message}", std::process::id());
    let sent =
        UnixDatagram::unbound().and_then(|socket| socket.send_to(line.as_bytes(), "/dev/log"));
    if sent.is_err()
        && let Ok(mut kmsg) = std::fs::OpenOptions::new().write(true).open("/dev/kmsg")
    {
        let _ = kmsg.write_all(line.as_bytes());
    }
}
