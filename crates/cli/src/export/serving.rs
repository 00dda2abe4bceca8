//! A device at a socket: the server at work until a signal ends it.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::json;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;
use stetfs_export::{ByteDev, nbd, vhost_user};
use stetfs_fuse::Ended;
use stetfs_fuse::background::Waiting;

use crate::failure::{Explain, Result};

/// A socket, and who will be served there.
pub(crate) enum Listener {
    Nbd(nbd::Listener),
    VhostUser(vhost_user::Listener),
}

impl Listener {
    /// The address as clients write it.
    fn address(&self) -> String {
        match self {
            Self::Nbd(listener) => listener.uri(),
            Self::VhostUser(listener) => format!("vhost-user:{}", listener.address()),
        }
    }
}

/// A server at work.
enum Server {
    Nbd(nbd::Server),
    VhostUser(vhost_user::Server),
}

impl Server {
    fn start(listener: Listener, dev: Arc<ByteDev>) -> io::Result<Self> {
        Ok(match listener {
            Listener::Nbd(listener) => Self::Nbd(nbd::Server::start(listener, dev)?),
            Listener::VhostUser(listener) => {
                Self::VhostUser(vhost_user::Server::start(listener, dev)?)
            }
        })
    }

    fn stop(&mut self) {
        match self {
            Self::Nbd(server) => server.stop(),
            Self::VhostUser(server) => server.stop(),
        }
    }

    fn stats(&self) -> serde_json::Value {
        match self {
            Self::Nbd(server) => {
                let seen = server.stats();
                json!({
                    "connections": seen.connections,
                    "accepted": seen.accepted,
                    "requests": seen.requests,
                })
            }
            Self::VhostUser(server) => {
                let seen = server.stats();
                json!({
                    "connections": u32::from(seen.is_connected),
                    "accepted": seen.accepted,
                    "requests": seen.requests,
                    "malformed": seen.malformed,
                })
            }
        }
    }
}

/// Where and how statistics are written.
pub(crate) struct Stats<'a> {
    /// The device's.
    pub(crate) facts: &'a dyn Fn() -> serde_json::Value,
    /// The file, if there is to be one.
    pub(crate) file: Option<PathBuf>,
    /// Where the device came from.
    pub(crate) source: &'a Path,
}

impl Stats<'_> {
    /// Whoever reads the file finds all of it.
    fn write(&self, server: serde_json::Value) -> io::Result<()> {
        let Some(file) = &self.file else {
            return Ok(());
        };
        let mut stats = (self.facts)();
        stats["server"] = server;
        stats["server"]["image"] = json!(self.source);
        stats["server"]["pid"] = json!(std::process::id());
        let dir = file.parent().unwrap_or(Path::new("/"));
        let mut written = tempfile::NamedTempFile::new_in(dir)?;
        writeln!(written, "{stats:#}")?;
        written.persist(file).map(drop).map_err(|e| e.error)
    }
}

/// Serves `dev` until a signal asks for the end. Then finishes what is under way and flushes the
/// device. Calls `ready` when clients are accepted.
///
/// # Errors
/// Signals or threads cannot be had; the device cannot be flushed.
pub(crate) fn serve(
    listener: Listener,
    dev: Arc<ByteDev>,
    stats: &Stats<'_>,
    ready: impl FnOnce() -> io::Result<Waiting>,
) -> Result<Ended> {
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP, SIGUSR1])?;
    let address = listener.address();
    let mut server = Server::start(listener, dev.clone())?;
    let pid = std::process::id();
    eprintln!("stetfs: serving {address}; end it with: kill {pid}");
    ready()?.release()?;
    let tell = |server: &Server| {
        let mut seen = server.stats();
        seen["address"] = json!(address);
        if let Err(error) = stats.write(seen) {
            tracing::error!("statistics: {error}");
        }
    };
    let signal = signals.forever().find(|signal| {
        let asks = *signal == SIGUSR1;
        if asks {
            tell(&server);
        }
        !asks
    });
    server.stop();
    tell(&server);
    drop(server);
    dev.flush().during(|| stats.source.display().to_string())?;
    Ok(Ended::Signal(signal.unwrap_or(SIGTERM)))
}
