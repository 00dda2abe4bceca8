//! Where the program's own messages go: to standard error; from a server in the background, to a
//! file or the system log.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use stetfs_fuse::system_log::{self, Severity};
use tracing::{Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;

/// The destination of log lines; it changes once, when a server leaves its terminal.
#[derive(Clone)]
pub(crate) struct Log {
    to_system_log: Arc<AtomicBool>,
}

impl Log {
    /// Starts logging to standard error; `verbose` is the number of -v.
    pub(crate) fn start(verbose: u8) -> Self {
        let log = Self {
            to_system_log: Arc::default(),
        };
        let level = match verbose {
            0 => Level::WARN,
            1 => Level::INFO,
            2 => Level::DEBUG,
            _ => Level::TRACE,
        };
        tracing_subscriber::fmt()
            .with_max_level(level)
            .with_ansi(false)
            .with_target(false)
            .with_writer(log.clone())
            .init();
        log
    }

    /// Called when the server has left its terminal. Messages go to the system log from then on,
    /// unless standard error is a file.
    pub(crate) fn detach(&self, has_file: bool) {
        self.to_system_log.store(!has_file, Ordering::Relaxed);
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Line;

    fn make_writer(&'a self) -> Line {
        self.line(Severity::Info)
    }

    fn make_writer_for(&'a self, meta: &Metadata<'_>) -> Line {
        self.line(match *meta.level() {
            Level::ERROR => Severity::Error,
            Level::WARN => Severity::Warning,
            _ => Severity::Info,
        })
    }
}

impl Log {
    fn line(&self, severity: Severity) -> Line {
        Line(
            self.to_system_log
                .load(Ordering::Relaxed)
                .then_some(severity),
        )
    }
}

/// One message, written at once: to the system log with a severity, or else to standard error.
pub(crate) struct Line(Option<Severity>);

impl Write for Line {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        match self.0 {
            None => io::stderr().write_all(text)?,
            Some(severity) => system_log::write(severity, String::from_utf8_lossy(text).trim_end()),
        }
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
