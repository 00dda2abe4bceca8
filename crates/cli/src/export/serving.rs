//! A device at a socket, or of the kernel's driver ublk: the server at work until a signal ends it.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use serde_json::json;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;
use stetfs_export::{ByteDev, nbd, ublk, vhost_user};
use stetfs_fuse::Ended;
use stetfs_fuse::background::Waiting;

use crate::failure::{Explain, Result};

/// How often it is looked whether a device is still in use.
const LOOK: Duration = Duration::from_millis(100);

/// Where users will be served.
pub(crate) enum Listener {
    Nbd(nbd::Listener),
    VhostUser(vhost_user::Listener),
    Ublk(ublk::Listener),
}

/// A server at work.
enum Server {
    Nbd(nbd::Server),
    VhostUser(vhost_user::Server),
    Ublk(ublk::Server),
}

impl Server {
    /// Returns the address as users write it, too.
    fn start(listener: Listener, dev: Arc<ByteDev>) -> Result<(Self, String)> {
        Ok(match listener {
            Listener::Nbd(listener) => {
                let address = listener.uri();
                (Self::Nbd(nbd::Server::start(listener, dev)?), address)
            }
            Listener::VhostUser(listener) => {
                let address = format!("vhost-user:{}", listener.address());
                let server = vhost_user::Server::start(listener, dev)?;
                (Self::VhostUser(server), address)
            }
            Listener::Ublk(listener) => {
                let server = ublk::Server::start(listener, dev)?;
                let address = server.path().display().to_string();
                (Self::Ublk(server), address)
            }
        })
    }

    fn stop(&mut self) {
        match self {
            Self::Nbd(server) => server.stop(),
            Self::VhostUser(server) => server.stop(),
            Self::Ublk(server) => server.stop(),
        }
    }

    /// Whether somebody of this machine would lose what he has mounted.
    fn is_in_use(&self) -> bool {
        match self {
            Self::Nbd(_) | Self::VhostUser(_) => false,
            Self::Ublk(server) => server.is_in_use(),
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
            Self::Ublk(server) => json!({ "requests": server.stats().requests }),
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
    let (mut server, address) = Server::start(listener, dev.clone())?;
    let pid = std::process::id();
    eprintln!("stetfs: serving {address}; end it with: kill {pid}");
    if matches!(server, Server::Ublk(_)) {
        println!("{address}");
    }
    ready()?.release()?;
    let tell = |server: &Server| {
        let mut seen = server.stats();
        seen["address"] = json!(address);
        if let Err(error) = stats.write(seen) {
            tracing::error!("statistics: {error}");
        }
    };
    let is_end = |signal: &i32| {
        let asks = *signal == SIGUSR1;
        if asks {
            tell(&server);
        }
        !asks
    };
    let signal = signals.forever().find(is_end).unwrap_or(SIGTERM);
    let mut ended = Ended::Signal(signal);
    if server.is_in_use() {
        tracing::warn!(
            "{address} is in use: the server ends when it is unmounted, or at a second signal"
        );
    }
    while server.is_in_use() {
        if let Some(signal) = signals.pending().find(is_end) {
            ended = Ended::Cut(signal);
            break;
        }
        thread::sleep(LOOK);
    }
    server.stop();
    tell(&server);
    drop(server);
    dev.flush().during(|| stats.source.display().to_string())?;
    Ok(ended)
}
